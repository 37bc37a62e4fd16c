//! HTTP/3 frames, static QPACK and request state, sans-IO.
