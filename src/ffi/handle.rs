//! Handles: what a `lfm3_model *` or `lfm3_stream *` points to.
//!
//! A handle is a counted pointer. Every call takes its own count for as long as it runs, so that a handle freed by
//! another thread meanwhile lives until that call's end.

use super::args;
use super::guard;
use super::status::LFM3_OK;
use crate::error::{Code, Error, Result};
use parking_lot::Mutex;
use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a handle of some kind holds.
pub(super) trait Kind {
    /// The name C knows it by.
    type Opaque;
    /// Tells a live handle of this kind from a freed or foreign one, as far as that goes.
    const MAGIC: u64;
    /// For messages.
    const NAME: &'static str;

    /// The handle this one belongs to.
    fn owner(&self) -> Option<&Health> {
        None
    }

    /// The text of an error that came up outside a call of this handle.
    fn late_error(&self) -> String {
        String::new()
    }
}

/// Whether a handle can still be used.
#[derive(Default)]
pub(super) struct Health {
    poisoned: AtomicBool,
    closed: AtomicBool,
}

/// A handle's memory.
pub(super) struct Handle<T> {
    magic: AtomicU64,
    health: Arc<Health>,
    error: Mutex<String>,
    inner: T,
}

/// Hands a new handle to the host.
pub(super) fn new<T: Kind>(inner: T, health: Arc<Health>) -> *mut T::Opaque {
    let handle = Handle { magic: AtomicU64::new(T::MAGIC), health, error: Mutex::default(), inner };
    Arc::into_raw(Arc::new(handle)).cast_mut().cast()
}

/// Runs `body` on a usable handle; an error's text stays on it, a panic poisons it.
///
/// # Safety
/// `pointer` is NULL or came from [`new`] of the same kind and was not freed before this call began.
pub(super) unsafe fn call<T: Kind>(pointer: *const T::Opaque, body: impl FnOnce(&T) -> Result<i32>) -> i32 {
    // SAFETY: the caller's promise is ours.
    unsafe { call_whole::<T>(pointer, |handle| body(&handle.inner)) }
}

/// [`call`] for a body that needs the handle itself.
///
/// # Safety
/// As [`call`].
pub(super) unsafe fn call_whole<T: Kind>(
    pointer: *const T::Opaque,
    body: impl FnOnce(&Handle<T>) -> Result<i32>,
) -> i32 {
    guard::status(|| {
        // SAFETY: the caller's promise is ours.
        let handle = unsafe { share::<T>(pointer)? };
        handle.check()?;
        guard::run(|| body(&handle)).map_err(|error| handle.keep(error))
    })
}

/// Copies the text of the handle's last error, also where the handle is poisoned or closed.
///
/// # Safety
/// As [`call`]; `out` is valid for `capacity` bytes, `needed` is NULL or valid.
pub(super) unsafe fn last_error<T: Kind>(
    pointer: *const T::Opaque,
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    guard::status(|| {
        // SAFETY: the caller's promise is ours.
        let handle = unsafe { share::<T>(pointer)? };
        let mut text = handle.error.lock().clone();
        if text.is_empty() && !handle.health.poisoned.load(Ordering::Acquire) {
            text = handle.inner.late_error();
        }
        // SAFETY: the caller's promise is ours.
        unsafe { args::truncated(&text, out, capacity, needed) }
    })
}

/// Takes the host's count back after `close`; calls in flight keep theirs.
///
/// # Safety
/// As [`call`], and the host uses `pointer` no more.
pub(super) unsafe fn free<T: Kind>(pointer: *mut T::Opaque, close: impl FnOnce(&T)) -> i32 {
    guard::status(|| {
        if pointer.is_null() {
            return Ok(LFM3_OK);
        }
        // SAFETY: the caller's promise is ours.
        let handle = unsafe { checked::<T>(pointer)? };
        if handle.magic.swap(0, Ordering::AcqRel) != T::MAGIC {
            return Err(Error::new(Code::InvalidArgument, format!("this {} was freed before", T::NAME)));
        }
        // SAFETY: `new` made the count that the swap above lets exactly one free take back.
        let handle = unsafe { Arc::from_raw(std::ptr::from_ref(handle)) };
        handle.health.closed.store(true, Ordering::Release);
        close(&handle.inner);
        Ok(LFM3_OK)
    })
}

/// # Safety
/// As [`call`].
unsafe fn share<T: Kind>(pointer: *const T::Opaque) -> Result<Arc<Handle<T>>> {
    // SAFETY: the caller's promise is ours.
    let handle = std::ptr::from_ref(unsafe { checked::<T>(pointer)? });
    // SAFETY: a live handle's count is at least one, and `new` got the pointer from an `Arc`.
    unsafe {
        Arc::increment_strong_count(handle);
        Ok(Arc::from_raw(handle))
    }
}

/// # Safety
/// As [`call`].
unsafe fn checked<'a, T: Kind>(pointer: *const T::Opaque) -> Result<&'a Handle<T>> {
    let handle = pointer.cast::<Handle<T>>();
    if handle.is_null() || !handle.is_aligned() {
        let what = if handle.is_null() { "NULL" } else { "not a pointer to one" };
        return Err(Error::new(Code::InvalidArgument, format!("{} is {what}", T::NAME)));
    }
    // SAFETY: not NULL, aligned, and live by the caller's promise.
    let handle = unsafe { &*handle };
    if handle.magic.load(Ordering::Acquire) != T::MAGIC {
        return Err(Error::new(Code::InvalidArgument, format!("not a live {}", T::NAME)));
    }
    Ok(handle)
}

impl<T: Kind> Handle<T> {
    /// What the handle holds.
    pub(super) fn inner(&self) -> &T {
        &self.inner
    }

    /// Forgets the last call's error, since a later one came up outside of calls.
    pub(super) fn forget_error(&self) {
        self.error.lock().clear();
    }

    fn check(&self) -> Result<()> {
        let owner = self.inner.owner();
        if [Some(&*self.health), owner].into_iter().flatten().any(|health| health.poisoned.load(Ordering::Acquire)) {
            return Err(Error::new(Code::Poisoned, "an earlier call met a bug of the library"));
        }
        if owner.is_some_and(|owner| owner.closed.load(Ordering::Acquire)) {
            return Err(self.keep(Error::new(Code::Closed, format!("the model of this {} was freed", T::NAME))));
        }
        Ok(())
    }

    fn keep(&self, error: Error) -> Error {
        if error.code == Code::Internal {
            self.health.poisoned.store(true, Ordering::Release);
        }
        self.error.lock().clone_from(&error.message);
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(Option<Arc<Health>>);
    struct Opaque;

    impl Kind for Thing {
        type Opaque = Opaque;
        const MAGIC: u64 = 7;
        const NAME: &'static str = "thing";

        fn owner(&self) -> Option<&Health> {
            self.0.as_deref()
        }

        fn late_error(&self) -> String {
            "late".into()
        }
    }

    fn thing(owner: Option<Arc<Health>>) -> *mut Opaque {
        new(Thing(owner), Arc::default())
    }

    fn run(pointer: *mut Opaque, body: impl FnOnce() -> Result<i32>) -> i32 {
        // SAFETY: the tests pass NULL or live handles.
        unsafe { call::<Thing>(pointer, |_| body()) }
    }

    fn text(pointer: *mut Opaque) -> String {
        let mut out = [0; 200];
        let mut needed = 0;
        // SAFETY: a live handle and a buffer of its stated length.
        let status = unsafe { last_error::<Thing>(pointer, out.as_mut_ptr(), out.len(), &mut needed) };
        assert_eq!(status, LFM3_OK);
        out[..needed].iter().map(|&byte| byte as u8 as char).collect()
    }

    fn drop_it(pointer: *mut Opaque) -> i32 {
        // SAFETY: the tests pass NULL or a live handle they use no more.
        unsafe { free::<Thing>(pointer, |_| ()) }
    }

    #[test]
    fn a_panic_poisons_until_free() {
        let handle = thing(None);
        assert_eq!(run(handle, || panic!("broken")), Code::Internal as i32);
        assert_eq!(run(handle, || Ok(LFM3_OK)), Code::Poisoned as i32);
        assert!(text(handle).contains("broken"));
        assert_eq!(drop_it(handle), LFM3_OK);
    }

    #[test]
    fn an_error_keeps_its_text_and_the_handle_works_on() {
        let handle = thing(None);
        assert_eq!(text(handle), "late");
        assert_eq!(run(handle, || Err(Error::new(Code::State, "not now"))), Code::State as i32);
        assert_eq!(text(handle), "not now");
        // SAFETY: a live handle.
        unsafe {
            call_whole::<Thing>(handle, |handle| {
                handle.forget_error();
                Ok(LFM3_OK)
            })
        };
        assert_eq!(text(handle), "late");
        assert_eq!(run(handle, || Ok(5)), 5);
        drop_it(handle);
    }

    #[test]
    fn owners_close_and_poison_what_they_own() {
        let health = Arc::<Health>::default();
        let handle = thing(Some(health.clone()));
        assert_eq!(run(handle, || Ok(0)), 0);
        health.closed.store(true, Ordering::Release);
        assert_eq!(run(handle, || Ok(0)), Code::Closed as i32);
        health.poisoned.store(true, Ordering::Release);
        assert_eq!(run(handle, || Ok(0)), Code::Poisoned as i32);
        drop_it(handle);
    }

    #[test]
    fn a_handle_freed_inside_a_call_lives_to_its_end() {
        let alive = Arc::<Health>::default();
        let handle = thing(Some(alive.clone()));
        let count = || Arc::strong_count(&alive);
        let status = run(handle, || {
            assert_eq!(drop_it(handle), LFM3_OK);
            assert_eq!(count(), 2);
            Ok(LFM3_OK)
        });
        assert_eq!((status, count()), (LFM3_OK, 1));
    }

    #[test]
    fn null_foreign_and_crooked_pointers_are_refused() {
        let invalid = Code::InvalidArgument as i32;
        assert_eq!(run(std::ptr::null_mut(), || Ok(0)), invalid);
        assert_eq!(drop_it(std::ptr::null_mut()), LFM3_OK);
        let foreign =
            Handle { magic: AtomicU64::new(8), health: Arc::default(), error: Mutex::default(), inner: Thing(None) };
        let pointer = std::ptr::from_ref(&foreign).cast_mut().cast::<Opaque>();
        assert_eq!(run(pointer, || Ok(0)), invalid);
        assert_eq!(drop_it(pointer), invalid);
        assert_eq!(run(pointer.cast::<u8>().wrapping_add(1).cast(), || Ok(0)), invalid);
    }
}
