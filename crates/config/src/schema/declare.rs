//! The declaration of keys: [`keys!`].

/// Declares the keys of a section once: the struct that holds their values, and the section of the schema from which
/// come the check, the defaults, the names of variables, the JSON schema and the reference pages.
///
/// A key is written `name: Type = Kind, rules…;`. The comment above it is its documentation in Rust and for users. The
/// rules are the methods of [`Field`](super::Field). `name as "key"` is for a key that Rust cannot name.
/// `without field` lists keys that have no field of their own; `without key` fields that hold no single key; `with` methods of [`Section`](super::Section).
macro_rules! keys {
    (@name $key:ident) => { stringify!($key) };
    (@name $key:ident $name:literal) => { $name };
    (
        $(#[doc = $about_all:literal])+
        $(#[derive($($derive:tt)*)])?
        $(#[serde($($serde_all:tt)*)])?
        pub struct $struct:ident, $section:ident {
            $(
                $(#[doc = $about:literal])+
                $(#[serde($($serde:tt)*)])?
                $key:ident $(as $name:literal)?: $type:ty = $kind:expr $(, $rule:ident $(($($arg:expr),*))?)*;
            )*
        }
        $(without field {
            $(
                $(#[doc = $unread_about:literal])+
                $unread:ident = $unread_kind:expr $(, $unread_rule:ident $(($($unread_arg:expr),*))?)*;
            )*
        })?
        $(without key {
            $(
                $(#[doc = $free_about:literal])+
                $(#[serde($($free_serde:tt)*)])?
                $free:ident: $free_type:ty;
            )*
        })?
        $(with $($method:tt)+)?
    ) => {
        $(#[doc = $about_all])+
        $(#[derive($($derive)*)])?
        $(#[serde($($serde_all)*)])?
        pub struct $struct {
            $(
                $(#[doc = $about])+
                $(#[serde($($serde)*)])?
                pub $key: $type,
            )*
            $($(
                $(#[doc = $free_about])+
                $(#[serde($($free_serde)*)])?
                pub $free: $free_type,
            )*)?
        }

        pub(crate) static $section: $crate::schema::Section = $crate::schema::section(&[
            $(
                $crate::schema::field(
                    $crate::schema::keys!(@name $key $($name)?),
                    $kind,
                    $crate::schema::about(concat!($($about),+)),
                )$(.$rule($($($arg),*)?))*,
            )*
            $($(
                $crate::schema::field(
                    stringify!($unread),
                    $unread_kind,
                    $crate::schema::about(concat!($($unread_about),+)),
                )$(.$unread_rule($($($unread_arg),*)?))*,
            )*)?
        ])$(.$($method)+)?;
    };
}
pub(crate) use keys;

/// What a key means, from the comment above it: a sentence without its full stop.
pub(crate) const fn about(comment: &'static str) -> &'static str {
    let text = comment.trim_ascii();
    match text.as_bytes() {
        [sentence @ .., b'.'] => match str::from_utf8(sentence) {
            Ok(sentence) => sentence,
            Err(_) => text,
        },
        _ => text,
    }
}
