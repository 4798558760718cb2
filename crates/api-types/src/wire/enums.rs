//! Enumerations: full upper-case names on the wire, names or numbers read.

/// Defines an enumeration of the wire.
///
/// `pub enum Name("PREFIX_") { Variant = 0 => "REST", … }`: the wire name is prefix and rest, the number is the one
/// clients may send instead. Names are also understood without the prefix and in any letter case, since log shippers
/// send a bare `ERROR`.
macro_rules! wire_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident($prefix:literal) {
            $( $(#[$variant_meta:meta])* $variant:ident = $number:literal => $rest:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant, )+
        }

        impl $name {
            /// Every value, in the order of their numbers on the wire.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )+ ];

            /// The full name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => concat!($prefix, $rest), )+ }
            }

            /// The number on the wire.
            pub const fn number(self) -> i64 {
                match self { $( Self::$variant => $number, )+ }
            }

            /// The value with this number, if there is one.
            pub fn from_number(number: i64) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.number() == number)
            }

            /// The value with this name, with or without the prefix, in any letter case.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| {
                    let full = value.as_str();
                    full.eq_ignore_ascii_case(name)
                        || full.get($prefix.len()..).is_some_and(|rest| rest.eq_ignore_ascii_case(name))
                })
            }

            fn read(value: &serde_json::Value) -> Option<Self> {
                match value {
                    serde_json::Value::Number(number) => Self::from_number(number.as_i64()?),
                    serde_json::Value::String(text) => Self::from_name(text)
                        .or_else(|| Self::from_number(text.parse().ok()?)),
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::wire::WireError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::from_name(text).ok_or_else(|| {
                    let known: Vec<_> = Self::ALL.iter().map(|value| value.as_str()).collect();
                    $crate::wire::WireError::new(format!(
                        "{text:?} is not known here; allowed: {}",
                        known.join(", ")
                    ))
                })
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct NameVisitor;
                impl<'de> serde::de::Visitor<'de> for NameVisitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("the name or number of an enumeration's value")
                    }
                    fn visit_newtype_struct<D: serde::Deserializer<'de>>(
                        self,
                        deserializer: D,
                    ) -> Result<$name, D::Error> {
                        let value = serde_json::Value::deserialize(deserializer)?;
                        $name::read(&value).ok_or_else(|| {
                            let known: Vec<_> =
                                $name::ALL.iter().map(|value| value.as_str()).collect();
                            serde::de::Error::custom(format!(
                                "{value} is not known here; allowed: {}",
                                known.join(", ")
                            ))
                        })
                    }
                }
                deserializer.deserialize_newtype_struct("enum", NameVisitor)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::schema::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .enum_values(Some(Self::ALL.iter().map(|value| value.as_str())))
                    .into()
            }
        }
        impl utoipa::ToSchema for $name {}
    };
}
pub(crate) use wire_enum;
