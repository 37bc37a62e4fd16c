//! Decimal floating-point numbers of IEEE 754 as text (AMQP 1.0, part 1, sections 1.6.13 to
//! 1.6.15). Their encoding is the binary integer one.

use std::fmt::Write as _;

/// Layout of one width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    bits: u32,
    exponent_bits: u32,
    bias: i32,
    digits: u32,
}

pub(crate) const DECIMAL32: Layout = Layout {
    bits: 32,
    exponent_bits: 8,
    bias: 101,
    digits: 7,
};
pub(crate) const DECIMAL64: Layout = Layout {
    bits: 64,
    exponent_bits: 10,
    bias: 398,
    digits: 16,
};
pub(crate) const DECIMAL128: Layout = Layout {
    bits: 128,
    exponent_bits: 14,
    bias: 6176,
    digits: 34,
};

/// Smallest exponent of the first digit that is written without an exponent.
const MIN_PLAIN: i32 = -6;

impl Layout {
    const fn coefficient_bits(self) -> u32 {
        self.bits - 1 - self.exponent_bits
    }

    const fn mask(bits: u32) -> u128 {
        (1 << bits) - 1
    }

    /// Sign, coefficient and exponent; `None` for infinities, NaN, and coefficients with too many
    /// digits.
    fn take_apart(self, raw: u128) -> Option<(bool, u128, i32)> {
        let low_bits = self.coefficient_bits();
        let is_long = raw >> (self.bits - 3) & 3 == 3;
        if is_long && raw >> (self.bits - 5) & 3 == 3 {
            return None;
        }
        let (coefficient, exponent) = if is_long {
            let low_bits = low_bits - 2;
            (4 << low_bits | raw & Self::mask(low_bits), raw >> low_bits)
        } else {
            (raw & Self::mask(low_bits), raw >> low_bits)
        };
        let exponent = (exponent & Self::mask(self.exponent_bits)) as i32 - self.bias;
        let sign = raw >> (self.bits - 1) == 1;
        (coefficient < 10_u128.pow(self.digits)).then_some((sign, coefficient, exponent))
    }

    fn put_together(self, sign: bool, coefficient: u128, exponent: i32) -> Option<u128> {
        let low_bits = self.coefficient_bits();
        let biased = u128::try_from(exponent.checked_add(self.bias)?).ok()?;
        if coefficient >= 10_u128.pow(self.digits) || biased >= 3 << (self.exponent_bits - 2) {
            return None;
        }
        let sign = u128::from(sign) << (self.bits - 1);
        Some(
            sign | if coefficient >> low_bits == 0 {
                biased << low_bits | coefficient
            } else {
                let low_bits = low_bits - 2;
                3 << (self.bits - 3) | biased << low_bits | coefficient & Self::mask(low_bits)
            },
        )
    }

    /// The number of these bits, with all of its digits: `21.50`, `-1E+9`. `None` for infinities
    /// and NaN.
    pub(crate) fn text(self, raw: u128) -> Option<String> {
        let (sign, coefficient, exponent) = self.take_apart(raw)?;
        let digits = coefficient.to_string();
        let first = exponent + digits.len() as i32 - 1;
        let mut out = String::new();
        if sign {
            out.push('-');
        }
        if exponent > 0 || first < MIN_PLAIN {
            let (one, rest) = digits.split_at(1);
            out.push_str(one);
            if !rest.is_empty() {
                out.push('.');
                out.push_str(rest);
            }
            // A string takes any.
            let _ = write!(out, "E{first:+}");
        } else if exponent == 0 {
            out.push_str(&digits);
        } else {
            let after = exponent.unsigned_abs() as usize;
            let padded = format!("{digits:0>width$}", width = after + 1);
            let (whole, fraction) = padded.split_at(padded.len() - after);
            out.push_str(whole);
            out.push('.');
            out.push_str(fraction);
        }
        Some(out)
    }

    /// The bits of a number; `None` for anything else, and for one that has no such form.
    pub(crate) fn parse(self, text: &str) -> Option<u128> {
        let (sign, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (number, exponent) = match text.split_once(['E', 'e']) {
            Some((number, exponent)) => (number, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = || whole.bytes().chain(fraction.bytes());
        if whole.is_empty() || !digits().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let mut coefficient = 0_u128;
        for digit in digits() {
            coefficient = coefficient
                .checked_mul(10)?
                .checked_add(u128::from(digit - b'0'))?;
        }
        let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        self.put_together(sign, coefficient, exponent)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Layout; 3] = [DECIMAL32, DECIMAL64, DECIMAL128];

    #[test]
    fn known_numbers() {
        // decimal64 of 21.5: coefficient 215, exponent -1.
        let raw = (397_u128 << 53) | 0xd7;
        assert_eq!(DECIMAL64.text(raw).as_deref(), Some("21.5"));
        assert_eq!(DECIMAL64.parse("21.5"), Some(raw));
        assert_eq!(DECIMAL32.parse("1E+91"), None);
        assert_eq!(DECIMAL32.parse("12345678"), None);
        assert_eq!(DECIMAL32.text(0x7800_0000), None);
        for text in [
            "0", "-0", "0.00", "21.50", "1E+9", "-1.5E-9", "9999999", "0.000001", "1E-7",
        ] {
            for layout in ALL {
                let raw = layout.parse(text).unwrap();
                assert_eq!(layout.text(raw).as_deref(), Some(text));
            }
        }
        for bad in ["", "-", ".5", "1.2.3", "1E", "x", "1E+99999", "+1", " 1"] {
            assert_eq!(DECIMAL128.parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_number_comes_back(raw: u128) {
            for layout in ALL {
                let raw = raw >> (128 - layout.bits);
                if let Some(text) = layout.text(raw) {
                    prop_assert_eq!(layout.parse(&text), Some(raw), "{}", text);
                }
            }
        }
    }
}
