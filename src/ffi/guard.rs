//! What every exported call runs inside: no panic leaves it, none is printed, and no callback calls back in.

use crate::error::{Code, Error, Result};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;

/// Names of the library's own threads begin so; their panics are not printed either.
const THREAD_PREFIX: &str = "lfm3";

thread_local! {
    /// Calls this thread is inside of.
    static CALLS: Cell<u32> = const { Cell::new(0) };
    /// Whether one of them is inside the host's callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
    /// Where the last silenced panic began.
    static PLACE: Cell<Option<String>> = const { Cell::new(None) };
}

/// Puts a counter or a flag back, also when a panic passes.
struct Restore<T: Copy + 'static>(&'static std::thread::LocalKey<Cell<T>>, T);

impl<T: Copy> Restore<T> {
    fn set(key: &'static std::thread::LocalKey<Cell<T>>, value: T) -> Self {
        Restore(key, key.replace(value))
    }
}

impl<T: Copy> Drop for Restore<T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Runs the body of an exported call. A panic becomes `Internal` with its text and place; a call from inside a
/// callback is `Reentrant`.
pub(super) fn run<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    if IN_CALLBACK.get() {
        return Err(Error::new(Code::Reentrant, "called from inside one of the library's own callbacks"));
    }
    silence_own_panics();
    let _inside = Restore::set(&CALLS, CALLS.get() + 1);
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(bug(&*payload)))
}

/// The status of a call that has no handle to keep an error's text on.
pub(super) fn status(body: impl FnOnce() -> Result<i32>) -> i32 {
    run(body).unwrap_or_else(|error| error.code as i32)
}

/// Runs one of the host's callbacks.
pub(super) fn callback<T>(body: impl FnOnce() -> T) -> T {
    let _inside = Restore::set(&IN_CALLBACK, true);
    body()
}

/// The panic hook is the process's, so ours passes on every panic that is not ours.
fn silence_own_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| if ours() { note(info) } else { previous(info) }));
    });
}

fn ours() -> bool {
    let own_thread = || std::thread::current().name().is_some_and(|name| name.starts_with(THREAD_PREFIX));
    (CALLS.get() > 0 && !IN_CALLBACK.get()) || own_thread()
}

fn note(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string);
    // A thread at its end may have lost the cell; then the text goes without a place.
    let _ = PLACE.try_with(|cell| cell.set(place));
}

fn bug(payload: &(dyn Any + Send)) -> Error {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a text");
    let place = PLACE.try_with(Cell::take).ok().flatten().unwrap_or_else(|| "an unknown place".into());
    Error::new(Code::Internal, format!("a bug in liblfm3, please report it: {text} ({place}); free the handle"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_panic_becomes_internal_with_text_and_place() {
        let error = run::<()>(|| panic!("wheel {} off", 3)).unwrap_err();
        assert_eq!(error.code, Code::Internal);
        assert!(error.message.contains("wheel 3 off") && error.message.contains("guard.rs:"), "{}", error.message);
        assert!(run(|| Ok(1)).is_ok(), "the next call works");
    }

    #[test]
    fn only_panics_inside_calls_and_own_threads_are_silenced() {
        silence_own_panics();
        static SEEN: AtomicUsize = AtomicUsize::new(0);
        // The hook is the process's, and other tests panic meanwhile: count this test's threads only.
        let test = std::thread::current().id();
        let forwarding = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let here = std::thread::current();
            let counted = here.id() == test || here.name() == Some("lfm3-guard-test");
            SEEN.fetch_add(usize::from(counted && !ours()), Ordering::SeqCst);
            if !counted || ours() {
                forwarding(info);
            }
        }));
        let _ = run::<()>(|| panic!("inside"));
        let worker = std::thread::Builder::new().name("lfm3-guard-test".into()).spawn(|| panic!("worker")).unwrap();
        assert!(worker.join().is_err());
        assert_eq!(SEEN.load(Ordering::SeqCst), 0);
        let _ = std::panic::catch_unwind(|| panic!("the host's own"));
        assert_eq!(SEEN.load(Ordering::SeqCst), 1);
        let _ = run(|| Ok(callback(|| std::panic::catch_unwind(|| panic!("the host's callback")).is_err())));
        assert_eq!(SEEN.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn calls_from_a_callback_are_refused_and_later_ones_work() {
        let inner = run(|| Ok(callback(|| run(|| Ok(())).unwrap_err().code))).unwrap();
        assert_eq!(inner, Code::Reentrant);
        assert!(run(|| Ok(())).is_ok());
        let other = std::thread::spawn(|| run(|| Ok(())).is_ok());
        assert!(callback(|| other.join().unwrap()), "another thread is not inside the callback");
    }
}
