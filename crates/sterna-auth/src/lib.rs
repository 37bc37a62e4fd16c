//! Credentials: SCRAM-SHA-256 exchanges and password records, sans-IO.
