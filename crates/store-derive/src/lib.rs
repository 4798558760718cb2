//! `#[derive(Row)]`: reads a struct with named fields from a row of either database.
//!
//! A field is read from the column of its name. Both drivers are served by one list of fields, so that a column cannot
//! be left out for one of them. Three attributes read more than plain values; an `Option` of any may be NULL:
//!
//! - `#[row(json)]`: the column holds JSON. `#[row(json = "machine")]` names the column where the field is called
//!   otherwise.
//! - `#[row(word)]`: the column holds one of the words of an enum.
//! - `#[row(number)]`: the column holds a whole number, and the field's type takes only some.
//!
//! A value that does not fit is an error that names the row by its kind, the struct's name without `Row` or what
//! `#[row(kind = "…")]` gives, and its field `id`, or the one that `#[row(id = "…")]` names.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Code;
use quote::quote;
use syn::{Data, DeriveInput, Field, Fields, Ident, LitStr, Type, parse_macro_input};

/// Implements `crate::column::FromRow`, which reads rows of both databases.
///
/// # Errors
/// A type that is not a struct with named fields, or has generics, is a compile error; so is an attribute that is not
/// known, or that is used without a field `id`.
#[proc_macro_derive(Row, attributes(row))]
pub fn row(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// How a column is read.
enum Form {
    Plain,
    /// By this function of `crate::column`.
    Typed(Ident),
}

struct Column<'a> {
    field: &'a Ident,
    kind: &'a Type,
    name: String,
    form: Form,
}

impl<'a> Column<'a> {
    fn of(field: &'a Field) -> syn::Result<Option<Self>> {
        let Some(ident) = &field.ident else {
            return Ok(None);
        };
        let mut column = Self {
            field: ident,
            kind: &field.ty,
            name: ident.to_string(),
            form: Form::Plain,
        };
        for attribute in field.attrs.iter().filter(|a| a.path().is_ident("row")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("json") {
                    if meta.input.peek(syn::Token![=]) {
                        column.name = meta.value()?.parse::<LitStr>()?.value();
                    }
                } else if !meta.path.is_ident("word") && !meta.path.is_ident("number") {
                    return Err(meta.error("a column is read as json, word or number"));
                }
                column.form = Form::Typed(meta.path.require_ident()?.clone());
                Ok(())
            })?;
        }
        Ok(Some(column))
    }

    fn is_optional(&self) -> bool {
        let Type::Path(path) = self.kind else {
            return false;
        };
        path.path
            .segments
            .last()
            .is_some_and(|last| last.ident == "Option")
    }

    /// The column's value in PostgreSQL and in SQLite as it is before it is typed: a number or `&str`, or an `Option` of it.
    fn raw(&self, place: usize) -> (Code, Code) {
        let name = &self.name;
        let is_number = matches!(&self.form, Form::Typed(function) if function == "number");
        match (is_number, self.is_optional()) {
            (true, optional) => {
                let kind = if optional {
                    quote!(::std::option::Option<i64>)
                } else {
                    quote!(i64)
                };
                (
                    quote!(crate::column::pg::<#kind>(row, #name)?),
                    quote!(crate::column::lite::<#kind>(row, places[#place])?),
                )
            }
            (false, true) => (
                quote!(row.try_get::<::std::option::Option<&str>, _>(#name)?),
                quote!(row.get_ref(places[#place])?.as_str_or_null()?),
            ),
            (false, false) => (
                quote!(row.try_get::<&str, _>(#name)?),
                quote!(row.get_ref(places[#place])?.as_str()?),
            ),
        }
    }

    /// Reads the field; `plain` and `raw` give the column's value as the field's type and as it is before it is typed, `id`
    /// the row's id.
    fn read(&self, row: &str, plain: Code, raw: &Code, id: Option<&Code>) -> syn::Result<Code> {
        let Form::Typed(function) = &self.form else {
            return Ok(plain);
        };
        let id = id.ok_or_else(|| {
            syn::Error::new_spanned(
                self.field,
                "errors name the row by its field `id` or the one of `#[row(id = …)]`, and there is none",
            )
        })?;
        let name = &self.name;
        let read = if self.is_optional() {
            quote!(#raw.map(crate::column::#function).transpose())
        } else {
            quote!(crate::column::#function(#raw))
        };
        Ok(
            quote!(#read.map_err(|message| crate::column::UnreadableColumn {
            row: ::std::format!("{} {}", #row, #id.map(|id| id.to_string()).unwrap_or_default()),
            column: #name,
            message,
        })?),
        )
    }
}

/// The kind by which errors name a row, and the column that identifies it.
fn identity_of(input: &DeriveInput) -> syn::Result<(String, String)> {
    let name = input.ident.to_string();
    let mut kind = name.trim_end_matches("Row").to_lowercase();
    let mut id = "id".to_owned();
    for attribute in input.attrs.iter().filter(|a| a.path().is_ident("row")) {
        attribute.parse_nested_meta(|meta| {
            let part = if meta.path.is_ident("kind") {
                &mut kind
            } else if meta.path.is_ident("id") {
                &mut id
            } else {
                return Err(meta.error("a row has a kind and an id"));
            };
            *part = meta.value()?.parse::<LitStr>()?.value();
            Ok(())
        })?;
    }
    Ok((kind, id))
}

fn expand(input: &DeriveInput) -> syn::Result<Code> {
    let name = &input.ident;
    let fields = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) if input.generics.params.is_empty() => &fields.named,
            _ => return Err(unsupported(input)),
        },
        _ => return Err(unsupported(input)),
    };
    let mut columns = Vec::new();
    for field in fields {
        columns.extend(Column::of(field)?);
    }
    let (row, id_column) = identity_of(input)?;
    let id = columns.iter().position(|column| column.name == id_column);
    let (mut from_pg, mut from_lite) = (Vec::new(), Vec::new());
    let pg_id = id.map(|at| {
        let kind = columns[at].kind;
        quote!(crate::column::pg::<#kind>(row, #id_column))
    });
    let lite_id = id.map(|at| {
        let kind = columns[at].kind;
        quote!(crate::column::lite::<#kind>(row, places[#at]))
    });
    for (place, column) in columns.iter().enumerate() {
        let (field, name) = (column.field, &column.name);
        let (pg_raw, lite_raw) = column.raw(place);
        let read = column.read(
            &row,
            quote!(crate::column::pg(row, #name)?),
            &pg_raw,
            pg_id.as_ref(),
        )?;
        from_pg.push(quote!(#field: #read));
        let read = column.read(
            &row,
            quote!(crate::column::lite(row, places[#place])?),
            &lite_raw,
            lite_id.as_ref(),
        )?;
        from_lite.push(quote!(#field: #read));
    }
    let names = columns.iter().map(|column| &column.name);
    Ok(quote! {
        impl crate::column::FromRow for #name {
            const COLUMNS: &'static [&'static str] = &[ #( #names ),* ];

            fn from_lite(row: &::rusqlite::Row<'_>, places: &[usize]) -> ::rusqlite::Result<Self> {
                ::std::result::Result::Ok(Self { #( #from_lite, )* })
            }

            fn from_pg(row: &::sqlx::postgres::PgRow) -> ::sqlx::Result<Self> {
                use ::sqlx::Row as _;
                ::std::result::Result::Ok(Self { #( #from_pg, )* })
            }
        }
    })
}

fn unsupported(input: &DeriveInput) -> syn::Error {
    syn::Error::new_spanned(
        &input.ident,
        "a row is a struct with named fields and without generics",
    )
}
