//! The fields of a request, for the mapping of messages.

use sterna_http::Head;
use sterna_mapping::FieldSource;

/// The fields of a request that publishes.
pub(crate) struct Fields<'a>(pub(crate) &'a Head);

impl FieldSource for Fields<'_> {
    fn each(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        self.0.each_field(name, each);
    }
}
