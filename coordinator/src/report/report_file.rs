//! The file of `--report`.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::page;
use super::run_report::ReportDocument;

/// Where the report is written, and in which form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportFile {
    file: PathBuf,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Html,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The name does not say in which form.
    #[error("--report: {} must end in .json or .html: the ending says what is written", .0.display())]
    Ending(PathBuf),
    /// The document cannot be made.
    #[error("--report: the document cannot be made")]
    Make(#[source] serde_json::Error),
    /// It cannot be written.
    #[error("--report: {} cannot be written", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl ReportFile {
    /// The file of that name; a name that is empty is none.
    ///
    /// # Errors
    /// [`ReportError::Ending`].
    pub fn of(file: Option<PathBuf>) -> Result<Option<Self>, ReportError> {
        let Some(file) = file.filter(|file| !file.as_os_str().is_empty()) else { return Ok(None) };
        match form(&file) {
            Some(form) => Ok(Some(Self { file, form })),
            None => Err(ReportError::Ending(file)),
        }
    }

    /// Whether the file can be written; leaves it as it is. Asked before a run changes anything: afterwards it would be
    /// too late to say so.
    ///
    /// # Errors
    /// [`ReportError::Write`].
    pub fn try_out(&self) -> Result<(), ReportError> {
        let mut open = OpenOptions::new();
        let tried = match open.append(true).create_new(true).open(&self.file) {
            // A run that is killed must not leave an empty report.
            Ok(_) => std::fs::remove_file(&self.file),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                open.create_new(false).create(true).open(&self.file).map(|_| ())
            }
            Err(error) => Err(error),
        };
        tried.map_err(|source| ReportError::Write { file: self.file.clone(), source })
    }

    /// Writes the report over what was there.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn write(&self, report: &ReportDocument) -> Result<(), ReportError> {
        let text = match self.form {
            Form::Json => serde_json::to_string_pretty(report).map_err(ReportError::Make)? + "\n",
            Form::Html => page::text(report),
        };
        std::fs::write(&self.file, text).map_err(|source| ReportError::Write { file: self.file.clone(), source })
    }
}

/// A report that is still to be written: once, by the run's end or by the signal that ends it at once, whichever comes
/// first.
#[derive(Clone)]
pub struct Due(Arc<Mutex<Option<ReportFile>>>);

impl Due {
    /// That file; none when no report is asked for.
    #[must_use]
    pub fn new(file: Option<ReportFile>) -> Self {
        Self(Arc::new(Mutex::new(file)))
    }

    /// Writes it, unless it is written. Who comes second waits for the first.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn write(&self, report: impl FnOnce() -> ReportDocument) -> Result<(), ReportError> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.take().map_or(Ok(()), |file| file.write(&report()))
    }
}

fn form(file: &Path) -> Option<Form> {
    let ending = file.extension()?;
    [("json", Form::Json), ("html", Form::Html)]
        .into_iter()
        .find_map(|(name, form)| ending.eq_ignore_ascii_case(name).then_some(form))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_says_the_form() {
        let of = |name: &str| ReportFile::of(Some(name.into()));
        assert_eq!(ReportFile::of(None).unwrap(), None);
        assert_eq!(of("").unwrap(), None, "a variable that is set to nothing");
        assert_eq!(of("a/roll.json").unwrap().map(|file| file.form), Some(Form::Json));
        assert_eq!(of("ROLL.HTML").unwrap().map(|file| file.form), Some(Form::Html));
        for wrong in ["roll", "roll.xml", ".json", "roll.json.gz"] {
            assert!(of(wrong).unwrap_err().to_string().contains("must end in .json or .html"), "{wrong}");
        }
    }

    #[test]
    fn a_file_is_tried_out_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let try_out = |name: &str| ReportFile::of(Some(at(name))).unwrap().unwrap().try_out();
        try_out("new.json").unwrap();
        assert!(!at("new.json").exists());
        std::fs::write(at("old.json"), "old").unwrap();
        try_out("old.json").unwrap();
        assert_eq!(std::fs::read_to_string(at("old.json")).unwrap(), "old");
        let nowhere = try_out("nowhere/new.json").unwrap_err();
        assert!(nowhere.to_string().contains("nowhere/new.json cannot be written"), "{nowhere}");
        std::fs::create_dir(at("folder.json")).unwrap();
        try_out("folder.json").unwrap_err();
    }
}
