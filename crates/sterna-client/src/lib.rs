//! Asynchronous client library for every protocol and transport of Sterna.
