//! Sets of lcores, as lists (`0-3,8`) and as hexadecimal masks (`0x10f`).

use std::fmt;

/// Upper limit of lcore IDs (exclusive).
pub const MAX_LCORE: u16 = 1024;

const WORDS: usize = MAX_LCORE as usize / 64;

/// A set of lcore IDs below [`MAX_LCORE`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct LcoreSet([u64; WORDS]);

impl LcoreSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// Adds an ID. Returns false if it is not valid.
    pub fn insert(&mut self, id: u16) -> bool {
        match self.0.get_mut(usize::from(id) / 64) {
            Some(word) => {
                *word |= 1 << (id % 64);
                true
            }
            None => false,
        }
    }

    /// Removes an ID.
    pub fn remove(&mut self, id: u16) {
        if let Some(word) = self.0.get_mut(usize::from(id) / 64) {
            *word &= !(1 << (id % 64));
        }
    }

    /// True if the set contains the ID.
    #[must_use]
    pub fn contains(&self, id: u16) -> bool {
        self.0.get(usize::from(id) / 64).is_some_and(|word| word & (1 << (id % 64)) != 0)
    }

    /// Number of IDs in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// True if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|w| *w == 0)
    }

    /// Iterates over the IDs, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..MAX_LCORE).filter(|id| self.contains(*id))
    }

    /// Returns the lowest ID.
    #[must_use]
    pub fn first(&self) -> Option<u16> {
        self.iter().next()
    }

    /// Parses a list of IDs and ranges: `0-3,8`.
    pub fn from_list(list: &str) -> Result<Self, String> {
        let mut set = Self::EMPTY;
        for item in list.split(',') {
            let (low, high) = match item.split_once('-') {
                Some((low, high)) => (id(low)?, id(high)?),
                None => (id(item)?, id(item)?),
            };
            if low > high {
                return Err(format!("the range {item} runs backwards"));
            }
            for id in low..=high {
                set.insert(id);
            }
        }
        Ok(set)
    }

    /// Parses a hexadecimal mask, with or without `0x`: bit n is lcore n.
    pub fn from_mask(mask: &str) -> Result<Self, String> {
        let digits = mask.trim();
        let digits = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")).unwrap_or(digits);
        if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(format!("`{mask}` is not a hexadecimal mask"));
        }
        let mut set = Self::EMPTY;
        for (at, digit) in digits.chars().rev().enumerate() {
            for bit in (0..4).filter(|bit| digit.to_digit(16).unwrap_or(0) & (1 << bit) != 0) {
                if !u16::try_from(at * 4 + bit).is_ok_and(|id| set.insert(id)) {
                    return Err(format!("`{mask}` has bits beyond lcore {}", MAX_LCORE - 1));
                }
            }
        }
        Ok(set)
    }

    /// Formats the set as a hexadecimal mask with `0x`.
    #[must_use]
    pub fn to_mask(&self) -> String {
        let mut digits = String::new();
        for word in self.0.iter().rev() {
            match (digits.is_empty(), *word) {
                (true, 0) => {}
                (true, word) => digits = format!("{word:x}"),
                (false, word) => digits.push_str(&format!("{word:016x}")),
            }
        }
        format!("0x{}", if digits.is_empty() { "0" } else { &digits })
    }
}

/// Parses an lcore ID.
pub(crate) fn id(text: &str) -> Result<u16, String> {
    let text = text.trim();
    if text.is_empty() || !text.chars().all(|c| c.is_ascii_digit()) {
        return Err(format!("`{text}` is not an lcore number"));
    }
    match text.parse::<u16>() {
        Ok(id) if id < MAX_LCORE => Ok(id),
        _ => Err(format!("there is no lcore {text}: the highest is {}", MAX_LCORE - 1)),
    }
}

impl fmt::Display for LcoreSet {
    /// Formats the set as a list with ranges.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.iter().peekable();
        let mut separator = "";
        while let Some(low) = ids.next() {
            let mut high = low;
            while ids.next_if_eq(&(high + 1)).is_some() {
                high += 1;
            }
            match low == high {
                true => write!(f, "{separator}{low}")?,
                false => write!(f, "{separator}{low}-{high}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for LcoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LcoreSet({self})")
    }
}

impl FromIterator<u16> for LcoreSet {
    /// Invalid IDs are omitted.
    fn from_iter<I: IntoIterator<Item = u16>>(ids: I) -> Self {
        let mut set = Self::EMPTY;
        for id in ids {
            set.insert(id);
        }
        set
    }
}
