//! Storage behind the broker's storage trait.
