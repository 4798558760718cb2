//! Elements of which a bad one must not cost the others.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::openapi::{RefOr, schema::Schema};

use super::{WireError, decode_value};

/// One element of a list whose elements are read independently: log records, of which a broken one is dropped and the
/// rest kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SalvagedElement<T> {
    /// The element, which could be read.
    Read(T),
    /// It could not be read; the error's path is relative to the element.
    Unreadable(#[serde(serialize_with = "as_null")] WireError),
}

impl<T> SalvagedElement<T> {
    /// The element, or `None` when it could not be read.
    pub fn read(self) -> Option<T> {
        match self {
            Self::Read(element) => Some(element),
            Self::Unreadable(_) => None,
        }
    }
}

impl<T> From<T> for SalvagedElement<T> {
    fn from(element: T) -> Self {
        Self::Read(element)
    }
}

fn as_null<S: serde::Serializer>(_: &WireError, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_unit()
}

impl<'de, T: serde::de::DeserializeOwned + Default> Deserialize<'de> for SalvagedElement<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Element<T>(PhantomData<T>);
        impl<'de, T: serde::de::DeserializeOwned + Default> Visitor<'de> for Element<T> {
            type Value = SalvagedElement<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an element")
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<Self::Value, D::Error> {
                Ok(match decode_value(Value::deserialize(deserializer)?) {
                    Ok(element) => SalvagedElement::Read(element),
                    Err(error) => SalvagedElement::Unreadable(error),
                })
            }
        }
        deserializer.deserialize_newtype_struct("Salvaged", Element(PhantomData))
    }
}

impl<T: utoipa::PartialSchema> utoipa::PartialSchema for SalvagedElement<T> {
    fn schema() -> RefOr<Schema> {
        T::schema()
    }
}

impl<T: utoipa::ToSchema> utoipa::ToSchema for SalvagedElement<T> {
    fn name() -> std::borrow::Cow<'static, str> {
        T::name()
    }
}
