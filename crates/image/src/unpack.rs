//! Takes the compression off an archive that somebody brings.
//! Used by `minke image import`: containerd wants archives plain.
//! Invariant: no archive becomes larger than its caller allows (test: `an_archive_unpacks_within_its_limit`).

use std::io::{self, BufRead, Read, Write};

/// Copies an archive, unpacked if it is gzip or zstd, as far as `bytes_max`; whether it was packed.
pub fn unpack(mut archive: impl BufRead, output: &mut impl Write, bytes_max: u64) -> io::Result<bool> {
    let magic = archive.fill_buf()?;
    let packed: Box<dyn Read + '_> = match magic {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(archive)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::Decoder::with_buffer(archive)?),
        _ => return Ok(false),
    };
    let copied = io::copy(&mut packed.take(bytes_max.saturating_add(1)), output)?;
    match copied > bytes_max {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it unpacks to more than {bytes_max} bytes"))),
        false => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_unpacks_within_its_limit() {
        let plain = vec![7; 100_000];
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        for packed in [gzip.finish().unwrap(), zstd::encode_all(plain.as_slice(), 1).unwrap()] {
            let mut output = Vec::new();
            assert!(unpack(packed.as_slice(), &mut output, 100_000).unwrap());
            assert_eq!(output, plain);
            let error = unpack(packed.as_slice(), &mut io::sink(), 99_999).unwrap_err();
            assert_eq!(error.to_string(), "it unpacks to more than 99999 bytes");
        }
        assert!(!unpack(&plain[..], &mut io::sink(), 0).unwrap(), "a plain one stays as it is");
    }
}
