//! `#[derive(Row)]`: reads a struct with named fields from a row of either database.
//!
//! A field is read from the column of its name. Both drivers are served by one list of fields, so that a column cannot
//! be forgotten for one of them.

use proc_macro::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Fields, parse_macro_input};

/// Implements `sqlx::FromRow` for PostgreSQL's rows and `crate::lite::FromLite` for SQLite's.
///
/// # Errors
/// A type that is not a struct with named fields, or has generics, is a compile error.
#[proc_macro_derive(Row)]
pub fn row(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

fn expand(input: &DeriveInput) -> syn::Result<proc_macro2::TokenStream> {
    let name = &input.ident;
    let fields = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) if input.generics.params.is_empty() => &fields.named,
            _ => return Err(unsupported(input)),
        },
        _ => return Err(unsupported(input)),
    };
    let idents: Vec<_> = fields.iter().filter_map(|f| f.ident.as_ref()).collect();
    let columns: Vec<String> = idents.iter().map(ToString::to_string).collect();
    let places = 0..idents.len();
    Ok(quote! {
        impl ::sqlx::FromRow<'_, ::sqlx::postgres::PgRow> for #name {
            fn from_row(row: &::sqlx::postgres::PgRow) -> ::std::result::Result<Self, ::sqlx::Error> {
                use ::sqlx::Row as _;
                ::std::result::Result::Ok(Self { #( #idents: row.try_get(#columns)?, )* })
            }
        }

        impl crate::lite::FromLite for #name {
            const COLUMNS: &'static [&'static str] = &[ #( #columns ),* ];

            fn from_lite(row: &::rusqlite::Row<'_>, places: &[usize]) -> ::rusqlite::Result<Self> {
                ::std::result::Result::Ok(Self { #( #idents: row.get(places[#places])?, )* })
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
