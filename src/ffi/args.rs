//! Arguments from C: checked before use, copied in or out.

use super::guard;
use super::status::LFM3_OK;
use crate::error::{Code, Error, Result};
use std::ffi::c_char;
use std::mem::size_of;

/// Most bytes of one text argument.
const MAX_TEXT_BYTES: usize = 1 << 28;
/// Most elements of one array argument.
const MAX_ELEMENTS: usize = 1 << 26;
/// Most bytes a struct of a newer header may claim.
const MAX_STRUCT_BYTES: usize = 4096;
/// Structs grow by whole units, so that no size cuts a field.
const STRUCT_UNIT: usize = 8;

/// A struct that crosses the interface.
///
/// # Safety
/// `repr(C)` without padding, valid for any bits, and its first field is `struct_size: u32`.
pub(super) unsafe trait Struct: Copy {
    /// For messages.
    const NAME: &'static str;
}

/// An argument that is not what it must be.
pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, message)
}

/// Whether a struct may have this size.
fn is_struct_size(size: usize) -> bool {
    (STRUCT_UNIT..=MAX_STRUCT_BYTES).contains(&size) && size.is_multiple_of(STRUCT_UNIT)
}

/// The size the caller's struct claims.
///
/// # Safety
/// `pointer` is valid for the four bytes it begins with.
pub(super) unsafe fn struct_size<T: Struct>(pointer: *const T) -> Result<usize> {
    // SAFETY: the caller's promise is ours; nothing is assumed about the alignment.
    let size = unsafe { pointer.cast::<u32>().read_unaligned() } as usize;
    if !is_struct_size(size) {
        let name = T::NAME;
        return Err(invalid(format!(
            "{name}.struct_size is {size}; it must be sizeof({name}), here {}",
            size_of::<T>()
        )));
    }
    Ok(size)
}

/// Reads the caller's struct over `default`, which stands for NULL and for fields an older caller lacks.
///
/// # Safety
/// `pointer` is NULL or valid for the size it states.
pub(super) unsafe fn read<T: Struct>(pointer: *const T, default: T) -> Result<T> {
    if pointer.is_null() {
        return Ok(default);
    }
    // SAFETY: not NULL, and valid for the size it states.
    let size = unsafe { struct_size(pointer)? };
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's struct is valid for `size` bytes.
    let tail = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>().add(known), size - known) };
    if let Some(at) = tail.iter().position(|&byte| byte != 0) {
        let text = format!("{} sets byte {}, which this version of the library does not know", T::NAME, known + at);
        return Err(Error::new(Code::Unsupported, text));
    }
    let mut value = default;
    // SAFETY: both are valid for `known` bytes, and any bits are a valid `T`.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut value).cast::<u8>(), known) };
    Ok(value)
}

/// A caller's struct that may be written: NULL was allowed, or its size was checked.
pub(super) struct Out<T> {
    pointer: *mut T,
    size: usize,
}

impl<T: Struct> Out<T> {
    /// Checks the struct at `pointer`, which must not be NULL.
    ///
    /// # Safety
    /// `pointer` is NULL or valid for the size it states, for as long as the result lives.
    pub(super) unsafe fn required(pointer: *mut T) -> Result<Self> {
        if pointer.is_null() {
            return Err(invalid(format!("the {} is NULL", T::NAME)));
        }
        // SAFETY: not NULL, and valid for the size it states.
        Ok(Out { pointer, size: unsafe { struct_size(pointer)? } })
    }

    /// The same, but NULL means that the caller does not want it.
    ///
    /// # Safety
    /// As [`Out::required`].
    pub(super) unsafe fn optional(pointer: *mut T) -> Result<Option<Self>> {
        // SAFETY: the caller's promise is ours.
        if pointer.is_null() { Ok(None) } else { unsafe { Self::required(pointer).map(Some) } }
    }

    /// Writes what the caller has room for, zeros behind, and leaves `struct_size` as the caller stated it.
    pub(super) fn write(self, value: T) {
        let head = size_of::<u32>();
        let known = self.size.min(size_of::<T>());
        let to = self.pointer.cast::<u8>();
        // SAFETY: `to` is valid for `size` bytes, `value` for `known`; both are at least a unit long.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>().add(head), to.add(head), known - head);
            to.add(known).write_bytes(0, self.size - known);
        }
    }
}

/// Writes the defaults of a params struct: the body of every `*_params_init`.
///
/// # Safety
/// `pointer` is NULL or valid for `size` bytes.
pub(super) unsafe fn init<T: Struct>(pointer: *mut T, size: usize, default: T) -> Result<i32> {
    if pointer.is_null() {
        return Err(invalid(format!("the {} is NULL", T::NAME)));
    }
    if !is_struct_size(size) {
        return Err(invalid(format!("size is {size}; it must be sizeof({})", T::NAME)));
    }
    // SAFETY: valid for `size` bytes, of which the first four become its size.
    unsafe { pointer.cast::<u32>().write_unaligned(size as u32) };
    Out { pointer, size }.write(default);
    Ok(LFM3_OK)
}

/// An array argument; NULL is fine where `count` is 0.
///
/// # Safety
/// `pointer` is NULL or valid for `count` elements while the result is used.
pub(super) unsafe fn slice<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    // SAFETY: the caller's promise is ours.
    unsafe { slice_up_to(pointer, count, MAX_ELEMENTS, what) }
}

/// [`slice`] with a limit of its own.
///
/// # Safety
/// As [`slice`].
pub(super) unsafe fn slice_up_to<'a, T>(pointer: *const T, count: usize, most: usize, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || !pointer.is_aligned() {
        let state = if pointer.is_null() { "NULL" } else { "not aligned" };
        return Err(invalid(format!("{what} is {state}, with {count} elements")));
    }
    if count > most {
        return Err(Error::new(Code::Limit, format!("{what} has {count} elements; the most is {most}")));
    }
    // SAFETY: not NULL, aligned, and valid for `count` elements by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// A text argument of `len` bytes.
///
/// # Safety
/// `pointer` is NULL or valid for `len` bytes while the result is used.
pub(super) unsafe fn text<'a>(pointer: *const c_char, len: usize, what: &str) -> Result<&'a str> {
    if len == 0 {
        return Ok("");
    }
    if pointer.is_null() {
        return Err(invalid(format!("{what} is NULL, with {len} bytes")));
    }
    if len > MAX_TEXT_BYTES {
        return Err(Error::new(Code::Limit, format!("{what} has {len} bytes; the most is {MAX_TEXT_BYTES}")));
    }
    // SAFETY: not NULL and valid for `len` bytes by the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), len) };
    std::str::from_utf8(bytes).map_err(|error| invalid(format!("{what} is not UTF-8 at byte {}", error.valid_up_to())))
}

/// A pointer the call writes one value to.
///
/// # Safety
/// `pointer` is NULL or valid for writing while the result is used.
pub(super) unsafe fn place<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(invalid(format!("{what} is {}", if pointer.is_null() { "NULL" } else { "not aligned" })));
    }
    // SAFETY: not NULL, aligned and valid for writing; plain numbers and pointers may hold any bits.
    Ok(unsafe { &mut *pointer })
}

/// The two-call rule: reports the count in `needed`, copies all of `data` or nothing.
///
/// # Safety
/// `out` is NULL or valid for `capacity` elements; `needed` is NULL or valid.
pub(super) unsafe fn fill<T: Copy>(data: &[T], out: *mut T, capacity: usize, needed: *mut usize) -> Result<i32> {
    if !needed.is_null() {
        // SAFETY: the caller's promise, and `place` checks the alignment.
        *unsafe { place(needed, "needed")? } = data.len();
    }
    if data.len() > capacity || out.is_null() {
        if data.is_empty() {
            return Ok(LFM3_OK);
        }
        let room = if out.is_null() { 0 } else { capacity };
        return Err(Error::new(Code::BufferTooSmall, format!("{} elements do not fit in {room}", data.len())));
    }
    if !out.is_aligned() {
        return Err(invalid("out is not aligned"));
    }
    // SAFETY: `out` has room for `capacity` elements, no fewer than `data` has, and cannot overlap our own memory.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), out, data.len()) };
    Ok(LFM3_OK)
}

/// [`fill`] for bytes of text, with a 0 behind them where there is room.
///
/// # Safety
/// As [`fill`].
pub(super) unsafe fn fill_text(data: &[u8], out: *mut c_char, capacity: usize, needed: *mut usize) -> Result<i32> {
    // SAFETY: the caller's promise is ours; a C char is a byte.
    let status = unsafe { fill(data, out.cast::<u8>(), capacity, needed)? };
    if !out.is_null() && data.len() < capacity {
        // SAFETY: inside the caller's buffer.
        unsafe { out.add(data.len()).write(0) };
    }
    Ok(status)
}

/// Copies as many whole characters of `text` as fit, always with a 0 behind; too small a buffer is still an error.
///
/// # Safety
/// As [`fill`].
pub(super) unsafe fn truncated(text: &str, out: *mut c_char, capacity: usize, needed: *mut usize) -> Result<i32> {
    if !needed.is_null() {
        // SAFETY: the caller's promise, and `place` checks the alignment.
        *unsafe { place(needed, "needed")? } = text.len();
    }
    if !out.is_null() && capacity > 0 {
        let end = text.floor_char_boundary(capacity - 1);
        // SAFETY: `end` is at most `capacity - 1`, so text and 0 are inside the caller's buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast::<u8>(), end);
            out.add(end).write(0);
        }
    }
    if text.len() < capacity && !out.is_null() {
        return Ok(LFM3_OK);
    }
    Err(Error::new(Code::BufferTooSmall, format!("{} bytes and a 0 do not fit in {capacity}", text.len())))
}

/// Runs `body` and puts the text of its error, or none, into the buffer the caller's params name.
///
/// # Safety
/// The buffer is NULL or valid for the bytes stated.
pub(super) unsafe fn explain(
    (buffer, capacity): (*mut c_char, usize),
    body: impl FnOnce() -> Result<i32>,
) -> Result<i32> {
    let result = guard::run(body);
    let text = result.as_ref().err().map_or("", |error| &error.message);
    // SAFETY: the caller's promise is ours. A text that is cut is no second error.
    let _ = unsafe { truncated(text, buffer, capacity, std::ptr::null_mut()) };
    result
}

/// The place for a constructor's handle, NULL until it is written.
///
/// # Safety
/// `out` is NULL or valid while the result is used.
pub(super) unsafe fn handle_out<'a, T>(out: *mut *mut T) -> Result<&'a mut *mut T> {
    // SAFETY: the caller's promise is ours.
    let out = unsafe { place(out, "the place for the handle")? };
    *out = std::ptr::null_mut();
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Sample {
        struct_size: u32,
        a: u32,
        b: u64,
    }

    // SAFETY: no padding, any bits are valid, begins with its size.
    unsafe impl Struct for Sample {
        const NAME: &'static str = "sample";
    }

    const DEFAULT: Sample = Sample { struct_size: 16, a: 1, b: 2 };

    fn read_words(words: &[u32]) -> Result<Sample> {
        // SAFETY: no test states a size beyond its words.
        unsafe { read(words.as_ptr().cast(), DEFAULT) }
    }

    #[test]
    fn shorter_structs_take_defaults_and_longer_ones_must_be_zero_behind() {
        assert_eq!(read_words(&[8, 5]).unwrap(), Sample { struct_size: 8, a: 5, b: 2 });
        assert_eq!(read_words(&[16, 5, 6, 0]).unwrap(), Sample { struct_size: 16, a: 5, b: 6 });
        assert_eq!(read_words(&[24, 5, 6, 0, 0, 0]).unwrap().b, 6);
        let error = read_words(&[24, 5, 6, 0, 0, 1]).unwrap_err();
        assert_eq!((error.code, error.message.contains("byte 20")), (Code::Unsupported, true), "{error}");
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { read(std::ptr::null(), DEFAULT) }.unwrap(), DEFAULT);
    }

    #[test]
    fn sizes_that_cut_fields_or_make_no_sense_are_refused() {
        for size in [0, 4, 12, 17, 4104, u32::MAX] {
            assert_eq!(read_words(&[size, 0]).unwrap_err().code, Code::InvalidArgument, "{size}");
        }
    }

    #[test]
    fn out_structs_keep_their_size_and_get_zeros_behind() {
        for words in [2_usize, 4, 6] {
            let mut room = [0xAAAA_AAAA_u32; 8];
            room[0] = 4 * words as u32;
            // SAFETY: the room is longer than the size it states.
            unsafe { Out::<Sample>::required(room.as_mut_ptr().cast()) }.unwrap().write(DEFAULT);
            let all = [room[0], 1, 2, 0, 0, 0];
            assert_eq!(room[..words], all[..words]);
            assert!(room[words..].iter().all(|&word| word == 0xAAAA_AAAA), "nothing behind it is touched");
        }
    }

    #[test]
    fn texts_are_checked() {
        // SAFETY: the length is the slice's.
        let check = |bytes: &[u8]| unsafe { text(bytes.as_ptr().cast(), bytes.len(), "text").map(str::to_owned) };
        assert_eq!(check("é".as_bytes()).unwrap(), "é");
        assert!(check(b"ab\xFF").unwrap_err().message.contains("byte 2"));
        // SAFETY: NULL and lengths over the limit are refused before a byte is read.
        unsafe {
            assert_eq!(text(null_mut(), 0, "text").unwrap(), "");
            assert_eq!(text(null_mut(), 1, "text").unwrap_err().code, Code::InvalidArgument);
            assert_eq!(text(c"x".as_ptr(), usize::MAX, "text").unwrap_err().code, Code::Limit);
            assert_eq!(slice(&1_u32, usize::MAX, "ids").unwrap_err().code, Code::Limit);
            assert_eq!(slice(null_mut::<u32>(), 1, "ids").unwrap_err().code, Code::InvalidArgument);
        }
    }

    #[test]
    fn the_two_call_rule_writes_all_or_nothing() {
        let mut out = [9_u32; 3];
        let mut needed = 0;
        // SAFETY: capacities are no larger than the buffer.
        unsafe {
            let small = fill(&[1, 2, 3], out.as_mut_ptr(), 2, &mut needed).unwrap_err();
            assert_eq!((small.code, needed, out), (Code::BufferTooSmall, 3, [9; 3]));
            assert_eq!(fill(&[1, 2, 3], null_mut(), 9, &mut needed).unwrap_err().code, Code::BufferTooSmall);
            assert_eq!(fill::<u32>(&[], null_mut(), 0, null_mut()).unwrap(), LFM3_OK);
            assert_eq!(fill(&[1, 2, 3], out.as_mut_ptr(), 3, null_mut()).unwrap(), LFM3_OK);
        }
        assert_eq!(out, [1, 2, 3]);
    }

    #[test]
    fn error_texts_are_cut_at_whole_characters() {
        let mut out = [7 as c_char; 4];
        let mut needed = 0;
        // SAFETY: the capacity is the buffer's.
        let cut = unsafe { truncated("aéé", out.as_mut_ptr(), 4, &mut needed) };
        assert_eq!(
            (cut.unwrap_err().code, needed, out),
            (Code::BufferTooSmall, 5, [b'a' as c_char, 0xc3_u8 as c_char, 0xa9_u8 as c_char, 0])
        );
        // SAFETY: as above.
        assert!(unsafe { truncated("abc", out.as_mut_ptr(), 4, null_mut()) }.is_ok());
    }
}
