// SPDX-License-Identifier: MIT OR Apache-2.0
//! New UUIDs and salts, from the kernel's random numbers.

use crate::error::{Error, Result};
use crate::report::Uuid;

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut have = 0;
    while have < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        have += rustix::rand::getrandom(&mut bytes[have..], flags)
            .map_err(|e| Error::system("(random numbers)".as_ref(), "asking for some", e.into()))?;
    }
    Ok(bytes)
}

/// The salt of a new pool: never 0.
pub(crate) fn salt() -> Result<u32> {
    Ok(u32::from_ne_bytes(random()?) | 1)
}

impl Uuid {
    /// A new random one (version 4).
    pub fn random() -> Result<Uuid> {
        let mut bytes: [u8; 16] = random()?;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Uuid(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_text_round_trips() {
        let u = Uuid::random().unwrap();
        assert_ne!(u, Uuid::random().unwrap());
        let text = u.to_string();
        assert_eq!(text.len(), 36);
        assert_eq!(&text[14..15], "4");
        assert_eq!(text.parse::<Uuid>().unwrap(), u);
        let json = serde_json::to_string(&u).unwrap();
        assert_eq!(serde_json::from_str::<Uuid>(&json).unwrap(), u);
        assert!("not-a-uuid".parse::<Uuid>().is_err());
    }
}
