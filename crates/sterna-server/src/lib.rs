//! The broker process: listeners, protocol front doors, authentication, configuration.
