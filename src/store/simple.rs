//! Statements given as text, answered as text: for the demonstration and the development server, which show both.
//!
//! The simple protocol: several statements may stand in one text, and no value is bound. Nothing that came from outside belongs
//! into such a text unless [`quoted`].

use tokio_postgres::SimpleQueryMessage;

use super::Error;
use super::connect::Client;

/// The answer to the last statement of a text that gives rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Their names.
    pub columns: Vec<String>,
    /// A value per column, as the server writes it; `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
}

impl Answer {
    /// The value in the first column of the first row, if there is one that is not NULL.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        self.rows.first()?.first()?.as_deref()
    }

    /// The first column, without its NULLs.
    #[must_use]
    pub fn first_column(&self) -> Vec<&str> {
        self.rows
            .iter()
            .filter_map(|row| row.first()?.as_deref())
            .collect()
    }
}

/// Runs the statements of `sql`, in one transaction unless they say otherwise.
///
/// # Errors
///
/// The first statement that fails; those after it are not run.
pub async fn run(client: &Client, sql: &str) -> Result<Answer, Error> {
    let mut answer = Answer::default();
    for message in client.simple_query(sql).await? {
        match message {
            SimpleQueryMessage::RowDescription(columns) => {
                answer = Answer {
                    columns: columns.iter().map(|it| it.name().to_owned()).collect(),
                    rows: Vec::new(),
                };
            }
            SimpleQueryMessage::Row(row) => {
                let values = (0..row.len())
                    .map(|column| Ok(row.try_get(column)?.map(str::to_owned)))
                    .collect::<Result<_, tokio_postgres::Error>>()?;
                answer.rows.push(values);
            }
            // The library may add kinds of messages; only rows are of interest here.
            SimpleQueryMessage::CommandComplete(_) | _ => {}
        }
    }
    Ok(answer)
}

/// `text` as a literal of SQL, in its quotes.
#[must_use]
pub fn quoted(text: &str) -> String {
    // With standard_conforming_strings (the default since 9.1) nothing else is special.
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_text_cannot_end_its_literal() {
        assert_eq!(quoted("it's"), "'it''s'");
        assert_eq!(quoted(r"a\' or"), r"'a\'' or'");
    }
}
