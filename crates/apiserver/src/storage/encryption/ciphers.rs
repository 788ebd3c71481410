//! The ciphers of values at rest, in upstream's formats: AES-GCM, AES-CBC, secretbox, and AES-GCM with derived keys.
//! Used by `transformers` and, for what a KMS protects, by `kms`.
//! A value that was changed, cut or moved to another key is an error where the format can tell (AES-CBC can't).

use aws_lc_rs::{
    aead::{AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    cipher::{
        AES_128, AES_192, AES_256, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey,
        PaddedBlockEncryptingKey, UnboundCipherKey,
    },
    constant_time,
    hkdf::{HKDF_SHA256, Prk},
    iv::FixedLength,
};
use poly1305::{Poly1305, universal_hash::KeyInit};
use salsa20::{
    XSalsa20,
    cipher::{KeyIvInit, StreamCipher},
};

use env::Env;

const BLOCK_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
const SECRETBOX_NONCE_BYTES: usize = 24;
/// Of a seed, and of what is mixed with it for each value.
pub const SEED_BYTES: usize = 32;

const CUT: &str = "the stored data was shorter than the required size";

/// AES-GCM: nonce, ciphertext, tag. `context` is authenticated: it is the key that the value lies under.
pub struct AesGcm(LessSafeKey);

impl AesGcm {
    pub fn new(key: &[u8]) -> Result<Self, String> {
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            24 => &AES_192_GCM,
            32 => &AES_256_GCM,
            other => return Err(format!("crypto/aes: invalid key size {other}")),
        };
        let key = UnboundKey::new(algorithm, key).map_err(|_| "the AES key can't be used")?;
        Ok(Self(LessSafeKey::new(key)))
    }

    pub fn seal(&self, plain: &[u8], context: &[u8], env: &Env) -> Result<Vec<u8>, String> {
        let mut out = vec![0; NONCE_LEN];
        env.fill_random(&mut out);
        let nonce = Nonce::try_assume_unique_for_key(&out).map_err(|_| "the nonce can't be used")?;
        out.extend_from_slice(plain);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(context), &mut out[NONCE_LEN..]);
        let tag = tag.map_err(|_| "the value can't be encrypted")?;
        out.extend_from_slice(tag.as_ref());
        Ok(out)
    }

    pub fn open(&self, sealed: &[u8], context: &[u8]) -> Result<Vec<u8>, String> {
        let (nonce, rest) = sealed.split_at_checked(NONCE_LEN).ok_or(CUT)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| CUT)?;
        let mut rest = rest.to_vec();
        let opened = self.0.open_in_place(nonce, Aad::from(context), &mut rest);
        let length = opened.map_err(|_| "cipher: message authentication failed")?.len();
        rest.truncate(length);
        Ok(rest)
    }
}

/// AES-CBC: initialization vector, then blocks padded as PKCS#7 says. Nothing authenticates it.
pub struct AesCbc {
    encrypting: PaddedBlockEncryptingKey,
    decrypting: PaddedBlockDecryptingKey,
}

impl AesCbc {
    pub fn new(key: &[u8]) -> Result<Self, String> {
        let algorithm = match key.len() {
            16 => &AES_128,
            24 => &AES_192,
            32 => &AES_256,
            other => return Err(format!("crypto/aes: invalid key size {other}")),
        };
        let unusable = |_| "the AES key can't be used".to_string();
        let key = || UnboundCipherKey::new(algorithm, key).map_err(unusable);
        Ok(Self {
            encrypting: PaddedBlockEncryptingKey::cbc_pkcs7(key()?).map_err(unusable)?,
            decrypting: PaddedBlockDecryptingKey::cbc_pkcs7(key()?).map_err(unusable)?,
        })
    }

    pub fn seal(&self, plain: &[u8], env: &Env) -> Result<Vec<u8>, String> {
        let mut vector = [0; BLOCK_BYTES];
        env.fill_random(&mut vector);
        let mut blocks = plain.to_vec();
        let context = EncryptionContext::Iv128(FixedLength::from(vector));
        self.encrypting.less_safe_encrypt(&mut blocks, context).map_err(|_| "the value can't be encrypted")?;
        Ok([&vector[..], &blocks].concat())
    }

    pub fn open(&self, sealed: &[u8]) -> Result<Vec<u8>, String> {
        let (vector, blocks) = sealed.split_at_checked(BLOCK_BYTES).ok_or(CUT)?;
        let vector: [u8; BLOCK_BYTES] = vector.try_into().map_err(|_| CUT)?;
        if blocks.is_empty() || !blocks.len().is_multiple_of(BLOCK_BYTES) {
            return Err("the stored data is not a multiple of the block size".into());
        }
        let mut blocks = blocks.to_vec();
        let context = DecryptionContext::Iv128(FixedLength::from(vector));
        let plain = self.decrypting.decrypt(&mut blocks, context);
        Ok(plain.map_err(|_| "invalid padding on input")?.to_vec())
    }
}

/// NaCl's secretbox (XSalsa20 and Poly1305): nonce, tag, ciphertext.
pub struct SecretBox([u8; 32]);

impl SecretBox {
    pub fn new(key: &[u8]) -> Result<Self, String> {
        let key = key.try_into();
        key.map(Self).map_err(|_| "expected key size 32 for secretbox provider".into())
    }

    /// The stream at the place where the message begins, and the key of its tag.
    fn stream(&self, nonce: &[u8; SECRETBOX_NONCE_BYTES]) -> (XSalsa20, Poly1305) {
        let mut stream = XSalsa20::new(&self.0.into(), &(*nonce).into());
        let mut tag_key = [0; 32];
        stream.apply_keystream(&mut tag_key);
        (stream, Poly1305::new(&tag_key.into()))
    }

    pub fn seal(&self, plain: &[u8], env: &Env) -> Vec<u8> {
        let mut nonce = [0; SECRETBOX_NONCE_BYTES];
        env.fill_random(&mut nonce);
        self.seal_with(plain, &nonce)
    }

    fn seal_with(&self, plain: &[u8], nonce: &[u8; SECRETBOX_NONCE_BYTES]) -> Vec<u8> {
        let (mut stream, tag) = self.stream(nonce);
        let mut sealed = plain.to_vec();
        stream.apply_keystream(&mut sealed);
        let tag = tag.compute_unpadded(&sealed);
        [&nonce[..], tag.as_slice(), &sealed].concat()
    }

    pub fn open(&self, sealed: &[u8]) -> Result<Vec<u8>, String> {
        let (nonce, rest) = sealed.split_at_checked(SECRETBOX_NONCE_BYTES).ok_or(CUT)?;
        let (found, message) = rest.split_at_checked(TAG_BYTES).ok_or(CUT)?;
        let (mut stream, tag) = self.stream(nonce.try_into().map_err(|_| CUT)?);
        let tag = tag.compute_unpadded(message);
        if constant_time::verify_slices_are_equal(tag.as_slice(), found).is_err() {
            return Err("output array was not large enough for encryption or its authentication failed".into());
        }
        let mut plain = message.to_vec();
        stream.apply_keystream(&mut plain);
        Ok(plain)
    }
}

/// AES-GCM with a key of its own for every value, derived from a seed and random bytes that lie before the value.
pub struct DerivedAesGcm(Prk);

impl DerivedAesGcm {
    pub fn new(seed: &[u8]) -> Result<Self, String> {
        if !(SEED_BYTES..=64).contains(&seed.len()) {
            return Err(format!("invalid seed length {} used for key generation", seed.len()));
        }
        Ok(Self(Prk::new_less_safe(HKDF_SHA256, seed)))
    }

    fn derived(&self, info: &[u8]) -> Result<AesGcm, String> {
        let mut key = [0; 32];
        let info = [info];
        let expanded = self.0.expand(&info, HKDF_SHA256).and_then(|key_of| key_of.fill(&mut key));
        expanded.map_err(|_| "failed to KDF expand seed with info")?;
        AesGcm::new(&key)
    }

    pub fn seal(&self, plain: &[u8], context: &[u8], env: &Env) -> Result<Vec<u8>, String> {
        let mut info = vec![0; SEED_BYTES];
        env.fill_random(&mut info);
        let sealed = self.derived(&info)?.seal(plain, context, env)?;
        info.extend_from_slice(&sealed);
        Ok(info)
    }

    pub fn open(&self, sealed: &[u8], context: &[u8]) -> Result<Vec<u8>, String> {
        let (info, sealed) = sealed.split_at_checked(SEED_BYTES).ok_or(CUT)?;
        self.derived(info)?.open(sealed, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Round = (&'static str, Box<dyn Fn(&[u8]) -> Vec<u8>>, Box<dyn Fn(&[u8], &str) -> Result<Vec<u8>, String>>);

    fn rounds(env: &Env) -> Vec<Round> {
        let mut all: Vec<Round> = Vec::new();
        for length in [16, 24, 32] {
            let key = vec![7; length];
            let (sealing, opening, env_of) = (AesGcm::new(&key).unwrap(), AesGcm::new(&key).unwrap(), env.clone());
            all.push((
                "gcm",
                Box::new(move |p| sealing.seal(p, b"here", &env_of).unwrap()),
                Box::new(move |s, at| opening.open(s, at.as_bytes())),
            ));
            let (sealing, opening, env_of) = (AesCbc::new(&key).unwrap(), AesCbc::new(&key).unwrap(), env.clone());
            all.push((
                "cbc",
                Box::new(move |p| sealing.seal(p, &env_of).unwrap()),
                Box::new(move |s, _| opening.open(s)),
            ));
        }
        let (sealing, opening, env_of) = (SecretBox([9; 32]), SecretBox([9; 32]), env.clone());
        all.push(("box", Box::new(move |p| sealing.seal(p, &env_of)), Box::new(move |s, _| opening.open(s))));
        let derived = || DerivedAesGcm::new(&[3; 32]).unwrap();
        let (sealing, opening, env_of) = (derived(), derived(), env.clone());
        all.push((
            "derived",
            Box::new(move |p| sealing.seal(p, b"here", &env_of).unwrap()),
            Box::new(move |s, at| opening.open(s, at.as_bytes())),
        ));
        all
    }

    #[test]
    fn what_is_sealed_opens_only_unchanged_and_in_its_place() {
        for (name, seal, open) in rounds(&Env::real()) {
            for plain in [&b""[..], b"a", &[5; 16], &[6; 100]] {
                let sealed = seal(plain);
                assert_ne!(sealed, seal(plain), "{name}: two values look alike");
                assert_eq!(open(&sealed, "here").as_deref(), Ok(plain), "{name}");
                assert!(open(&sealed[..sealed.len() - 1], "here").is_err(), "{name}: cut");
                assert!(open(&sealed[..8], "here").is_err(), "{name}: cut short");
                if name == "cbc" {
                    continue;
                }
                for at in [0, sealed.len() / 2, sealed.len() - 1] {
                    let mut changed = sealed.clone();
                    changed[at] ^= 1;
                    assert!(open(&changed, "here").is_err(), "{name}: byte {at} changed");
                }
                assert_eq!(open(&sealed, "there").is_err(), name != "box", "{name}: moved");
            }
        }
        assert!(AesGcm::new(&[0; 8]).is_err() && AesCbc::new(&[0; 8]).is_err() && SecretBox::new(&[0; 16]).is_err());
        assert!(DerivedAesGcm::new(&[0; 16]).is_err());
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    /// The published vector of NaCl's secretbox.
    #[test]
    fn secretbox_is_nacls() {
        let key = bytes("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389");
        let nonce = bytes("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37");
        let plain = bytes(
            "be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffce5ecbaaf33bd751a1ac728d45e6c61296cdc3c01\
             233561f41db66cce314adb310e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde048977eb48f59ffd\
             4924ca1c60902e52f0a089bc76897040e082f937763848645e0705",
        );
        let expected = bytes(
            "f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186ac0dfc17c\
             98dce87b4da7f011ec48c97271d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae90224368517acfea\
             bd6bb3732bc0e9da99832b61ca01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5",
        );
        let sealed = SecretBox::new(&key).unwrap().seal_with(&plain, &nonce.try_into().unwrap());
        assert_eq!(sealed[SECRETBOX_NONCE_BYTES..], expected);
    }
}
