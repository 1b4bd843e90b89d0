// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rbd:POOL/[NAMESPACE/]IMAGE[@CONF]`.

use std::ffi::CString;

/// The name of an image, and the configuration of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub pool: CString,
    /// The RADOS namespace within the pool; may be empty.
    pub namespace: CString,
    pub image: CString,
    /// `None`: librados chooses ($CEPH_CONF, /etc/ceph/ceph.conf).
    pub conf: Option<CString>,
}

impl Name {
    /// Parses the text after `rbd:`; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Name, &'static str> {
        let (image, conf) = match text.split_once('@') {
            Some((_, "")) => return Err("no file is named behind the @"),
            Some((image, conf)) => (image, Some(conf)),
            None => (text, None),
        };
        let parts: Vec<&str> = image.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return Err("it is POOL/IMAGE, or POOL/NAMESPACE/IMAGE"),
        };
        if pool.is_empty() || image.is_empty() {
            return Err("it names no pool, or no image");
        }
        let text = |s: &str| CString::new(s).map_err(|_| "it has a zero byte");
        let conf = conf.map(text).transpose()?;
        Ok(Name { pool: text(pool)?, namespace: text(namespace)?, image: text(image)?, conf })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let parts = |text| {
            let n = Name::parse(text)?;
            let text = |c: CString| c.into_string().expect("what was given");
            Ok::<_, &str>([n.pool, n.namespace, n.image, n.conf.unwrap_or_default()].map(text))
        };
        assert_eq!(parts("p/i").unwrap(), ["p", "", "i", ""]);
        assert_eq!(parts("p/n/i").unwrap(), ["p", "n", "i", ""]);
        assert_eq!(parts("p/i@/etc/a@b").unwrap(), ["p", "", "i", "/etc/a@b"]);
        for wrong in ["", "p", "/", "p/", "/i", "p//i", "p/n/", "a/b/c/d", "p/i@", "p/i\0"] {
            assert!(parts(wrong).is_err(), "{wrong}");
        }
    }
}
