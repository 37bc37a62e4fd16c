//! Pieces of patterns with `_`: a text is searched for all places of the piece at once, one bit for each.

use super::steps::Steps;

const BITS: usize = u64::BITS as usize;

/// A piece with `_`, which is not empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wild {
    /// Its characters in order; `None` is any.
    characters: Box<[Option<char>]>,
    /// The places of `_`.
    any: Box<[u64]>,
    /// The places of each other character, in the order of these.
    places: Box<[(char, Places)]>,
}

/// Places of a character, as what takes less.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Places {
    Few(Box<[u32]>),
    Many(Box<[u64]>),
}

const fn set(words: &mut [u64], place: usize) {
    words[place / BITS] |= 1 << (place % BITS);
}

const fn is_set(words: &[u64], place: usize) -> bool {
    words[place / BITS] & (1 << (place % BITS)) != 0
}

impl Wild {
    pub(super) fn new(characters: &[Option<char>]) -> Self {
        let words = characters.len().div_ceil(BITS);
        let mut any = vec![0; words];
        let mut sorted = Vec::new();
        for (place, character) in characters.iter().enumerate() {
            match character {
                Some(character) => sorted.push((*character, place as u32)),
                None => set(&mut any, place),
            }
        }
        sorted.sort_unstable();
        let places = sorted.chunk_by(|one, other| one.0 == other.0).map(|same| {
            let places = if same.len() <= words {
                Places::Few(same.iter().map(|&(_, place)| place).collect())
            } else {
                let mut many = vec![0; words];
                for &(_, place) in same {
                    set(&mut many, place as usize);
                }
                Places::Many(many.into())
            };
            (same[0].0, places)
        });
        Self {
            characters: characters.into(),
            any: any.into(),
            places: places.collect(),
        }
    }

    fn fits(&self, place: usize, c: char) -> bool {
        self.characters[place].is_none_or(|wanted| wanted == c)
    }

    /// The rest of a text that begins with this.
    pub(super) fn after_start<'t>(&self, text: &'t str, steps: &mut Steps) -> Option<&'t str> {
        if !steps.take(self.characters.len() as u64) {
            return None;
        }
        let mut rest = text.chars();
        let fits = (0..self.characters.len())
            .all(|place| rest.next().is_some_and(|c| self.fits(place, c)));
        fits.then_some(rest.as_str())
    }

    /// Whether a text ends with this.
    pub(super) fn ends(&self, text: &str, steps: &mut Steps) -> bool {
        let mut rest = text.chars();
        steps.take(self.characters.len() as u64)
            && (0..self.characters.len())
                .rev()
                .all(|place| rest.next_back().is_some_and(|c| self.fits(place, c)))
    }

    /// The rest of a text behind the first place of this.
    pub(super) fn after_first<'t>(&self, text: &'t str, steps: &mut Steps) -> Option<&'t str> {
        let words = self.any.len();
        // Bit `n` is set where the last `n + 1` characters are the first ones of this.
        let mut begun = vec![0_u64; words];
        let mut next = vec![0_u64; words];
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            if !steps.take(1 + words as u64) {
                return None;
            }
            let mut carry = 1;
            for word in &mut begun {
                let over = *word >> (BITS - 1);
                *word = *word << 1 | carry;
                carry = over;
            }
            for (next, (begun, any)) in next.iter_mut().zip(begun.iter().zip(&self.any)) {
                *next = begun & any;
            }
            let known = self.places.binary_search_by_key(&c, |(known, _)| *known);
            match known.ok().map(|at| &self.places[at].1) {
                None => {}
                Some(Places::Few(places)) => {
                    let places = places.iter().map(|&place| place as usize);
                    for place in places.filter(|&place| is_set(&begun, place)) {
                        set(&mut next, place);
                    }
                }
                Some(Places::Many(places)) => {
                    for (next, (begun, places)) in next.iter_mut().zip(begun.iter().zip(places)) {
                        *next |= begun & places;
                    }
                }
            }
            std::mem::swap(&mut begun, &mut next);
            if is_set(&begun, self.characters.len() - 1) {
                return Some(rest.as_str());
            }
        }
        None
    }
}
