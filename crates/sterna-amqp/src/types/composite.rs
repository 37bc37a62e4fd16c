//! Composite types: described lists with named fields (part 1, section 1.4).

use bytes::{BufMut as _, BytesMut};

use super::{Reader, Value, code};
use crate::DecodeError;

/// A composite type of the specification.
pub trait Composite<'a>: Sized {
    /// The numeric descriptor.
    const CODE: u64;
    /// The symbolic descriptor.
    const NAME: &'static str;

    /// Reads the list of fields, which the reader is at.
    ///
    /// # Errors
    ///
    /// `amqp:decode-error` for a missing mandatory field, a field of another type, or too many
    /// fields. `amqp:invalid-field` for a value that the field's type does not have.
    fn decode_list(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;

    /// Appends the list of fields.
    fn encode_list(&self, out: &mut BytesMut);

    /// Appends descriptor and list.
    fn encode(&self, out: &mut BytesMut) {
        encode_descriptor(out, Self::CODE);
        self.encode_list(out);
    }

    /// Reads descriptor and list from a value.
    ///
    /// # Errors
    ///
    /// As [`Composite::decode_list`], and `amqp:decode-error` for another type.
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        let Value::Described(described) = value else {
            return Err(DecodeError::decode("not a described type"));
        };
        if !described.is(Self::CODE, Self::NAME) {
            return Err(DecodeError::decode("described type is another"));
        }
        Self::from_described(&described)
    }

    /// Reads the list of a described value whose descriptor has been looked at.
    ///
    /// # Errors
    ///
    /// As [`Composite::decode_list`].
    fn from_described(described: &super::Described<'a>) -> Result<Self, DecodeError> {
        let Value::List(list) = described.value() else {
            return Err(DecodeError::decode("not a list"));
        };
        Self::decode_fields(list.len() as u32, list.body())
    }

    #[doc(hidden)]
    fn decode_fields(count: u32, body: &'a [u8]) -> Result<Self, DecodeError>;
}

/// Appends the start of a described type of the specification.
pub(crate) fn encode_descriptor(out: &mut BytesMut, code: u64) {
    out.put_u8(code::DESCRIBED);
    Value::Ulong(code).encode(out);
}

/// Declares a composite type: `name: type, required`, `name: type, optional` (an `Option`), or
/// `name: type, default value` (left out when it has that value).
macro_rules! composite {
    (
        $(#[$doc:meta])*
        $name:ident $(<$life:lifetime>)? = $code:literal, $symbol:literal {
            $($(#[$field_doc:meta])* $field:ident: $type:ty, $kind:ident $($default:expr)?;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $name $(<$life>)? {
            $($(#[$field_doc])* pub $field: crate::types::composite!(@type $kind $type),)*
        }

        crate::types::composite!(@impl $name ($($life)?) $code $symbol
            $($field $type, $kind $($default)?;)*);
    };
    (@impl $name:ident () $code:literal $symbol:literal $($rest:tt)*) => {
        impl<'a> crate::types::Composite<'a> for $name {
            crate::types::composite!(@body $code $symbol $($rest)*);
        }
    };
    (@impl $name:ident ($life:lifetime) $code:literal $symbol:literal $($rest:tt)*) => {
        impl<'a> crate::types::Composite<'a> for $name<'a> {
            crate::types::composite!(@body $code $symbol $($rest)*);
        }
    };
    (@body $code:literal $symbol:literal
        $($field:ident $type:ty, $kind:ident $($default:expr)?;)*) => {
        const CODE: u64 = $code;
        const NAME: &'static str = $symbol;

        fn decode_list(
            reader: &mut crate::types::Reader<'a>,
        ) -> Result<Self, crate::DecodeError> {
            #[allow(unused_mut, reason = "a type may have no fields")]
            let mut fields = crate::types::Fields::read(reader)?;
            let this = Self {
                $($field: crate::types::composite!(@read fields $kind $type $(, $default)?),)*
            };
            fields.end()?;
            Ok(this)
        }

        fn decode_fields(count: u32, body: &'a [u8]) -> Result<Self, crate::DecodeError> {
            #[allow(unused_mut, reason = "a type may have no fields")]
            let mut fields = crate::types::Fields::of(count, body);
            let this = Self {
                $($field: crate::types::composite!(@read fields $kind $type $(, $default)?),)*
            };
            fields.end()?;
            Ok(this)
        }

        fn encode_list(&self, out: &mut bytes::BytesMut) {
            #[allow(unused_mut, reason = "a type may have no fields")]
            let mut list = crate::types::ListWriter::new(out);
            $(crate::types::composite!(@write self list $field $kind $($default)?);)*
            list.finish();
        }
    };
    (@type required $type:ty) => { $type };
    (@type optional $type:ty) => { Option<$type> };
    (@type default $type:ty) => { $type };
    (@read $fields:ident required $type:ty) => { $fields.required()? };
    (@read $fields:ident optional $type:ty) => { $fields.optional()? };
    (@read $fields:ident default $type:ty, $default:expr) => { $fields.or($default)? };
    (@write $self:ident $list:ident $field:ident required) => {
        crate::types::Field::write(&$self.$field, $list.entry());
    };
    (@write $self:ident $list:ident $field:ident optional) => {
        match &$self.$field {
            Some(value) => crate::types::Field::write(value, $list.entry()),
            None => $list.skip(),
        }
    };
    (@write $self:ident $list:ident $field:ident default $default:expr) => {
        if $self.$field == $default {
            $list.skip();
        } else {
            crate::types::Field::write(&$self.$field, $list.entry());
        }
    };
}
pub(crate) use composite;

impl<'a, T: Composite<'a>> super::Field<'a> for T {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        Composite::from_value(value)
    }

    fn write(&self, out: &mut BytesMut) {
        self.encode(out);
    }
}
