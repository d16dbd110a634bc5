//! Rust text as the tidy tests see it: without comments and literals, as a list of paths.

/// A path as it is used, groups of imports taken apart: `use a::{b, c::d}` is `a::b`, `a::c::d`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UsedPath {
    pub(super) segments: Vec<String>,
    /// Counts from 1.
    pub(super) line: usize,
}

/// One file.
pub(super) struct Source {
    /// The text with a space for everything inside comments, strings and characters; line ends
    /// stay.
    pub(super) code: String,
    /// First and last line of each module that only tests compile.
    tests: Vec<(usize, usize)>,
}

impl Source {
    pub(super) fn read(text: &str) -> Self {
        let code = strip(text);
        let tests = test_modules(&code);
        Self { code, tests }
    }

    pub(super) fn is_test(&self, line: usize) -> bool {
        self.tests.iter().any(|(first, last)| (*first..=*last).contains(&line))
    }

    pub(super) fn code_lines(&self) -> usize {
        self.code.lines().filter(|line| !line.trim().is_empty()).count()
    }

    pub(super) fn paths(&self) -> Vec<UsedPath> {
        let tokens = tokens(&self.code);
        let mut found = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            at = path(&tokens, at, &[], &mut found).max(at + 1);
        }
        found
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Token<'text> {
    Word(&'text str, usize),
    /// `::`
    Step,
    Other(char),
}

fn tokens(code: &str) -> Vec<Token<'_>> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let taken = if word(first) {
                let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
                found.push(Token::Word(&rest[..end], number + 1));
                end
            } else if rest.starts_with("::") {
                found.push(Token::Step);
                2
            } else {
                found.push(Token::Other(first));
                first.len_utf8()
            };
            rest = rest[taken..].trim_start();
        }
    }
    found
}

/// Reads the path that starts at `at` behind `prefix`, and what its group holds; answers where it
/// ends.
fn path(tokens: &[Token<'_>], at: usize, prefix: &[String], found: &mut Vec<UsedPath>) -> usize {
    let Some(Token::Word(_, line)) = tokens.get(at) else { return at };
    let mut segments = prefix.to_vec();
    let mut at = at;
    while let Some(Token::Word(word, _)) = tokens.get(at) {
        segments.push((*word).to_owned());
        at += 1;
        if tokens.get(at) != Some(&Token::Step) {
            break;
        }
        at += 1;
        if tokens.get(at) == Some(&Token::Other('{')) {
            return group(tokens, at + 1, &segments, found);
        }
    }
    found.push(UsedPath { segments, line: *line });
    at
}

/// The paths between braces, up to the closing one.
fn group(tokens: &[Token<'_>], at: usize, prefix: &[String], found: &mut Vec<UsedPath>) -> usize {
    let mut at = at;
    while at < tokens.len() {
        at = match &tokens[at] {
            Token::Other('}') => return at + 1,
            Token::Word(..) => path(tokens, at, prefix, found),
            _ => at + 1,
        };
    }
    at
}

/// Line ranges of `#[cfg(test)] mod x { … }`.
fn test_modules(code: &str) -> Vec<(usize, usize)> {
    const MARK: &str = "#[cfg(test)]";
    let line_of = |at: usize| code[..at].matches('\n').count() + 1;
    let mut found = Vec::new();
    for (start, _) in code.match_indices(MARK) {
        let behind = &code[start + MARK.len()..];
        let open = behind.find(['{', ';']).filter(|at| behind.as_bytes()[*at] == b'{');
        let Some(open) = open else { continue };
        let mut depth = 0usize;
        let close = behind[open..].char_indices().find_map(|(at, c)| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            (depth == 0).then_some(at)
        });
        let end = start + MARK.len() + open + close.unwrap_or(behind.len() - open);
        found.push((line_of(start), line_of(end)));
    }
    found
}

/// Blanks comments, strings and characters. A mark of their place stays as a space.
fn strip(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut previous = ' ';
    while let Some(first) = rest.chars().next() {
        let in_word = previous.is_alphanumeric() || previous == '_';
        let taken = comment(rest).or_else(|| literal(rest, in_word));
        let len = taken.unwrap_or_else(|| first.len_utf8());
        if taken.is_some() {
            out.extend(rest[..len].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        } else {
            out.push(first);
        }
        previous = if taken.is_some() { ' ' } else { first };
        rest = &rest[len..];
    }
    out
}

/// The length of the comment that `text` starts with. Block comments nest.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let mut depth = 0usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    Some(text.len())
}

/// The length of the string or character that `text` starts with, prefix included.
fn literal(text: &str, in_word: bool) -> Option<usize> {
    let prefixes: &[&str] = if in_word { &[""] } else { &["br", "cr", "r", "b", "c", ""] };
    for prefix in prefixes {
        let Some(rest) = text.strip_prefix(prefix) else { continue };
        let length = if prefix.ends_with('r') { raw(rest) } else { quoted(rest) };
        if let Some(length) = length {
            return Some(prefix.len() + length);
        }
    }
    None
}

/// `"…"` or `##"…"##`, in which nothing is escaped.
fn raw(text: &str) -> Option<usize> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let body = text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = hashes + 1;
    Some(body.find(&end).map_or(text.len(), |at| start + at + end.len()))
}

/// A string with escapes, or a character; a lifetime is neither.
fn quoted(text: &str) -> Option<usize> {
    let mut chars = text.char_indices();
    let (_, quote) = chars.next()?;
    match quote {
        '"' => {}
        '\'' => {
            let mut ahead = text[1..].chars();
            let escaped = ahead.next()? == '\\';
            if !escaped && ahead.next() != Some('\'') {
                return None;
            }
        }
        _ => return None,
    }
    let mut escaped = false;
    for (at, c) in chars {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + c.len_utf8()),
            _ => {}
        }
    }
    Some(text.len())
}
