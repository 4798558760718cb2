//! The database: SQLite or PostgreSQL behind one set of functions.
