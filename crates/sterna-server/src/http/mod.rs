//! The HTTP front door's resources that are not topics or sessions.

#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the router of the front door serves it")
)]
mod openapi;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the router of the front door serves it")
)]
mod page;
