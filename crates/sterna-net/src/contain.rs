//! Panics that end only one connection.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs one step for one connection. Everything that the step was changing must belong to that
/// connection, or be put in order by the caller.
///
/// # Errors
///
/// The message of the panic, if the step panicked.
pub fn contain<T>(step: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(step)).map_err(|panic| {
        match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
            (Some(text), _) => (*text).to_owned(),
            (None, Some(text)) => text.clone(),
            (None, None) => "no message".to_owned(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::contain;

    #[test]
    fn a_panic_is_its_message() {
        assert_eq!(contain(|| 7), Ok(7));
        for (panic, message) in [
            (Box::new("text") as Box<dyn std::any::Any + Send>, "text"),
            (Box::new("string".to_owned()), "string"),
            (Box::new(7), "no message"),
        ] {
            let contained: Result<(), String> = contain(|| std::panic::resume_unwind(panic));
            assert_eq!(contained.unwrap_err(), message);
        }
    }
}
