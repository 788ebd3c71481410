//! The protobuf wire: a writer that fills from the end, and a reader that trusts nothing.
//! Used by `encode` and `decode` beside it, and by `openapi` for its own messages.
//! The reader never reads past its slice.

/// Writes a message backwards, so that the length of a nested message is known when its header is written.
#[derive(Default)]
pub(crate) struct Writer {
    reversed: Vec<u8>,
}

pub(crate) const VARINT: u32 = 0;
pub(crate) const FIXED64: u32 = 1;
pub(crate) const BYTES: u32 = 2;
const FIXED32: u32 = 5;

impl Writer {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { reversed: Vec::with_capacity(bytes) }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.reversed.reverse();
        self.reversed
    }

    pub(crate) fn len(&self) -> usize {
        self.reversed.len()
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.reversed.extend(bytes.iter().rev());
    }

    pub(crate) fn varint(&mut self, mut value: u64) {
        let mut bytes = [0; 10];
        let mut used = 0;
        loop {
            let more = value > 0x7f;
            bytes[used] = (value & 0x7f) as u8 | if more { 0x80 } else { 0 };
            used += 1;
            value >>= 7;
            if !more {
                break;
            }
        }
        self.raw(&bytes[..used]);
    }

    pub(crate) fn tag(&mut self, number: u32, kind: u32) {
        self.varint(u64::from(number << 3 | kind));
    }

    pub(crate) fn integer(&mut self, number: u32, value: i64) {
        self.varint(value as u64);
        self.tag(number, VARINT);
    }

    pub(crate) fn double(&mut self, number: u32, value: f64) {
        self.raw(&value.to_le_bytes());
        self.tag(number, FIXED64);
    }

    pub(crate) fn bytes(&mut self, number: u32, value: &[u8]) {
        self.raw(value);
        self.varint(value.len() as u64);
        self.tag(number, BYTES);
    }

    /// Closes the message that was written since `start` (what `len` said before it).
    pub(crate) fn close(&mut self, number: u32, start: usize) {
        self.varint((self.len() - start) as u64);
        self.tag(number, BYTES);
    }
}

pub(crate) struct Reader<'b> {
    rest: &'b [u8],
}

/// One field as it stands on the wire.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Item<'b> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'b [u8]),
}

pub(crate) type ReadError = &'static str;

impl<'b> Reader<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn next(&mut self) -> Result<Option<(u32, Item<'b>)>, ReadError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| "proto: illegal tag")?;
        if number == 0 {
            return Err("proto: illegal tag 0");
        }
        let item = match (key & 7) as u32 {
            VARINT => Item::Varint(self.varint()?),
            FIXED64 => Item::Fixed64(u64::from_le_bytes(self.array()?)),
            FIXED32 => Item::Fixed32(u32::from_le_bytes(self.array()?)),
            BYTES => {
                let length = usize::try_from(self.varint()?).map_err(|_| "proto: negative length found")?;
                Item::Bytes(self.take(length)?)
            }
            _ => return Err("proto: illegal wireType"),
        };
        Ok(Some((number, item)))
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], ReadError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or("unexpected EOF")?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        self.take(N)?.try_into().map_err(|_| "unexpected EOF")
    }

    fn varint(&mut self) -> Result<u64, ReadError> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("proto: integer overflow")
    }
}
