//! Values for any message without writing them by hand.

use serde::de::value::{Error, I64Deserializer, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

/// Deepest level at which lists and maps still get an element; bounds types that contain themselves.
const MAX_DEPTH: usize = 6;

/// A message in which every field is set: options have values, lists and maps have an element, texts are not empty.
pub(crate) fn full<T: DeserializeOwned>() -> T {
    T::deserialize(Filler { depth: 0 }).expect("every type of the crate can be filled")
}

/// Answers every question of a type about its content.
#[derive(Clone, Copy)]
struct Filler {
    depth: usize,
}

impl Filler {
    fn inner(self) -> Self {
        Self {
            depth: self.depth + 1,
        }
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $value:expr;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit($value)
        }
    )*};
}

impl<'de> Deserializer<'de> for Filler {
    type Error = Error;

    numbers! {
        deserialize_any visit_i64 7;
        deserialize_bool visit_bool true;
        deserialize_i8 visit_i64 7;
        deserialize_i16 visit_i64 7;
        deserialize_i32 visit_i64 7;
        deserialize_i64 visit_i64 7;
        deserialize_u8 visit_i64 7;
        deserialize_u16 visit_i64 7;
        deserialize_u32 visit_i64 7;
        deserialize_u64 visit_i64 7;
        deserialize_f32 visit_f64 0.5;
        deserialize_f64 visit_f64 0.5;
        deserialize_char visit_char 'x';
        deserialize_str visit_str "text";
        deserialize_string visit_str "text";
        deserialize_identifier visit_str "text";
        deserialize_bytes visit_bytes b"text";
        deserialize_byte_buf visit_bytes b"text";
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let text =
            |text: &'static str| -> StrDeserializer<'static, Error> { text.into_deserializer() };
        let number = |number: i64| -> I64Deserializer<Error> { number.into_deserializer() };
        match name {
            "enum" => visitor.visit_newtype_struct(number(1)),
            "Int64" => visitor.visit_newtype_struct(text("9007199254740993")),
            "Float" => visitor.visit_newtype_struct(text("NaN")),
            "Timestamp" => visitor.visit_newtype_struct(text("2022-03-02T02:18:18.299569Z")),
            "Bytes" => visitor.visit_newtype_struct(text("eA==")),
            _ => visitor.visit_newtype_struct(text("text")),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(One(self, self.depth < MAX_DEPTH))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(OneEntry(self, self.depth < MAX_DEPTH))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Keys(self, fields))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let first = variants.first().copied().unwrap_or_default();
        let name: StrDeserializer<'static, Error> = first.into_deserializer();
        visitor.visit_enum(name)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }
}

/// A list of one element, or of none.
struct One(Filler, bool);

impl<'de> SeqAccess<'de> for One {
    type Error = Error;
    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        if !std::mem::replace(&mut self.1, false) {
            return Ok(None);
        }
        seed.deserialize(self.0.inner()).map(Some)
    }
}

/// An entry of a map whose keys are texts or numbers, or none.
struct OneEntry(Filler, bool);

impl<'de> MapAccess<'de> for OneEntry {
    type Error = Error;
    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        if !std::mem::replace(&mut self.1, false) {
            return Ok(None);
        }
        seed.deserialize(Key).map(Some)
    }
    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.0.inner())
    }
}

/// The key of an entry: a number where its type is one.
struct Key;

impl<'de> Deserializer<'de> for Key {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str("own_key")
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u32(7)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// A value for each key.
struct Keys(Filler, &'static [&'static str]);

impl<'de> MapAccess<'de> for Keys {
    type Error = Error;
    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some((key, rest)) = self.1.split_first() else {
            return Ok(None);
        };
        self.1 = rest;
        let key: StrDeserializer<'static, Error> = (*key).into_deserializer();
        seed.deserialize(key).map(Some)
    }
    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.0.inner())
    }
}
