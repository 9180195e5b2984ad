//! Checks the pages in `docs/` and the README. The targets of links must exist. The tests run those code blocks that
//! this machine can run, and compare the output. All code blocks that are not run must be valid in the language that
//! their fence names.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::command::gpuflame_with;
use crate::support::{compile, cuda, gpuflame, preload, root, scratch, skip};

/// A fenced block in a page: the words after the opening fence, and the text of the block.
struct Block {
    page: PathBuf,
    kind: String,
    text: String,
}

fn pages() -> Vec<PathBuf> {
    let folder = root().join("docs").read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> =
        folder.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect();
    pages.extend(
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "SKILL.md", "capi/python/README.md"]
            .map(|page| root().join(page)),
    );
    pages.sort();
    pages
}

fn blocks(page: &Path) -> Vec<Block> {
    let (text, mut blocks, mut open) = (fs::read_to_string(page).unwrap(), Vec::new(), None::<Block>);
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some("")) => blocks.extend(open.take()),
            (Some(block), _) => {
                block.text += line;
                block.text.push('\n');
            }
            (None, Some(kind)) => {
                open = Some(Block { page: page.to_owned(), kind: kind.to_owned(), text: String::new() });
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a block is not closed", page.display());
    blocks
}

/// Returns the anchors of the headings in a page, in the form that GitHub generates.
fn anchors(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).unwrap();
    let headings =
        text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = heading
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .collect::<String>();
        kept.replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn links_between_pages_resolve() {
    const MORE_PAGES: [&str; 7] = [
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "bpf-optional/README.md",
        "examples/README.md",
        "tests/gpu/README.md",
        "tests/gpusim/README.md",
        "tests/pytorch/README.md",
    ];
    let mut wrong = Vec::new();
    for page in pages().into_iter().chain(MORE_PAGES.map(|page| root().join(page))) {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let is_there = target.exists() && (anchor.is_empty() || anchors(&target).contains(anchor));
            if !is_there {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_page_is_in_the_index_of_pages() {
    let list = fs::read_to_string(root().join("docs/README.md")).unwrap();
    for page in root().join("docs").read_dir().unwrap().map(|entry| entry.unwrap().file_name()) {
        let page = page.into_string().unwrap();
        assert!(
            page == "README.md" || !page.ends_with(".md") || list.contains(&format!("({page})")),
            "docs/README.md does not name {page}"
        );
    }
}

/// Returns a folder with the command and the library, in the layout of an installation.
fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let (built, prefix) = (scratch("built"), scratch("prefix"));
        symlink(gpuflame(), built.join("libgpuflame.so")).unwrap();
        symlink(env!("CARGO_BIN_EXE_gpuflame"), built.join("gpuflame")).unwrap();
        symlink(preload(), built.join("libgpuflame-preload.so")).unwrap();
        let installed =
            Command::new(root().join("capi/install.sh")).args([&prefix, &built]).output().unwrap();
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        prefix
    })
}

/// Returns whether `line` matches `pattern`, in which `…` matches any text.
fn is_like(line: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<_> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn runnable_blocks_in_pages_print_the_documented_output() {
    let program = compile("examples/llm_inference.c", &["-O2"]);
    let path = format!("{}:{}", installed().join("bin").display(), std::env::var("PATH").unwrap());
    let mut ran = 0;
    for page in pages() {
        let folder = scratch("page");
        fs::copy(&program, folder.join("app")).unwrap();
        let blocks = blocks(&page);
        for (at, block) in blocks.iter().enumerate().filter(|(_, block)| block.kind == "sh run") {
            let mut command = Command::new("bash");
            for (name, _) in std::env::vars_os() {
                if ["GPUFLAME_", "GPUSIM_", "CUDA_INJ", "RANK"]
                    .iter()
                    .any(|own| name.to_string_lossy().starts_with(own))
                {
                    command.env_remove(name);
                }
            }
            command.args(["-euo", "pipefail", "-c", &block.text]).current_dir(&folder);
            let output = command.env("PATH", &path).env("LD_LIBRARY_PATH", cuda()).output().unwrap();
            let printed = [&output.stdout[..], &output.stderr].concat();
            let printed = String::from_utf8_lossy(&printed);
            assert!(output.status.success(), "{}\n{}\n{printed}", page.display(), block.text);
            let said = blocks
                .get(at + 1)
                .filter(|next| next.kind == "text")
                .expect("the block after it has its output");
            let mut lines = printed.lines();
            for pattern in said.text.lines() {
                assert!(
                    lines.any(|line| is_like(line, pattern)),
                    "{}: no line like\n{pattern}\nin this order in what this prints:\n{}\n{printed}",
                    page.display(),
                    block.text
                );
            }
            ran += 1;
        }
    }
    assert!(ran >= 5, "{ran}");
}

/// Returns the commands in a page: the lines of its shell blocks, and the commands in its tables.
fn commands(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let in_blocks = blocks(page).into_iter().filter(|block| block.kind == "sh").flat_map(|block| {
        block.text.lines().map(|line| line.split(" #").next().unwrap().trim().to_owned()).collect::<Vec<_>>()
    });
    let in_text = text
        .lines()
        .filter(|line| !line.starts_with("```"))
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    let in_text = in_text.filter(|code| code.starts_with("gpuflame ")).map(str::to_owned);
    in_blocks.chain(in_text).filter(|command| !command.is_empty()).collect()
}

#[test]
fn commands_of_the_skill_work() {
    let page = root().join("SKILL.md");
    let folder = scratch("skill");
    fs::copy(compile("examples/llm_inference.c", &["-O2"]), folder.join("app")).unwrap();
    // This stand-in for Python ignores its arguments and runs a program that launches work.
    fs::create_dir(folder.join("bin")).unwrap();
    fs::write(folder.join("bin/python"), "#!/bin/sh\nexec ./app\n").unwrap();
    fs::set_permissions(folder.join("bin/python"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = [folder.join("bin"), installed().join("bin"), std::env::var_os("PATH").unwrap().into()];
    let path = path.map(|part| part.into_os_string().into_string().unwrap()).join(":");
    let run = |command: &str| {
        let mut shell = Command::new("bash");
        for (name, _) in std::env::vars_os() {
            if ["GPUFLAME_", "GPUSIM_", "CUDA_INJ"].iter().any(|own| name.to_string_lossy().starts_with(own))
            {
                shell.env_remove(name);
            }
        }
        shell.args(["-c", command]).current_dir(&folder).env("PATH", &path).env("LD_LIBRARY_PATH", cuda());
        shell.stdin(std::process::Stdio::null()).output().unwrap()
    };
    let commands = commands(&page);
    assert!(commands.len() > 18, "{commands:?}");
    let (records, questions): (Vec<_>, Vec<_>) =
        commands.iter().partition(|command| command.contains(" run ") && !command.ends_with("COMMAND"));
    for record in records {
        let output = run(record);
        assert!(output.status.success(), "{record}: {}", String::from_utf8_lossy(&output.stderr));
    }
    fs::create_dir(folder.join("job")).unwrap();
    for copy in ["before.gfr", "after.gfr", "job/rank-0.gfr", "job/rank-1.gfr"] {
        fs::copy(folder.join("run.gfr"), folder.join(copy)).unwrap();
    }
    for question in questions {
        let output = run(question);
        // The commands listed here may fail, because this machine has no GPU and the recording has no communication
        // between GPUs.
        let may_fail = ["gpuflame doctor", "--by comm"].iter().any(|part| question.contains(part));
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || may_fail && output.status.code() == Some(1), "{question}: {why}");
    }
}

#[test]
fn the_skill_has_the_form_that_agents_read_and_names_tools_that_exist() {
    let text = fs::read_to_string(root().join("SKILL.md")).unwrap();
    let (head, body) = text.strip_prefix("---\n").unwrap().split_once("\n---\n").unwrap();
    let lines: Vec<_> = head.lines().collect();
    assert_eq!(lines[0], "name: gpuflame");
    let description = lines[1].strip_prefix("description: ").unwrap();
    assert!(lines.len() == 2 && description.len() <= 1024 && !description.contains(": "), "{head}");
    assert!(text.lines().count() < 120);
    let messages = [
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#,
    ];
    let listed =
        gpuflame_with(&scratch("skill"), ["mcp"], (messages.join("\n") + "\n").as_bytes()).ok().stdout;
    let rows: Vec<_> =
        body.lines().filter(|line| line.starts_with("| ") && line.contains("`gpuflame ")).collect();
    assert!(rows.len() > 10, "{rows:?}");
    for row in rows {
        let tool = row.rsplit('`').nth(1).unwrap();
        assert!(listed.contains(&format!("\"name\":\"{tool}\"")), "{row}");
    }
}

/// Returns a Python interpreter that has a YAML reader, if `tests/python/install` installed one.
fn python() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("python/arrow/bin/python");
    let has_yaml =
        Command::new(&python).args(["-c", "import yaml"]).output().is_ok_and(|done| done.status.success());
    if !has_yaml {
        skip("no Python has a YAML reader; run `tests/python/install`");
    }
    has_yaml.then_some(python)
}

#[test]
fn code_blocks_in_pages_are_valid_in_their_stated_language() {
    let folder = scratch("blocks");
    let include = root().join("include");
    for block in pages().iter().flat_map(|page| blocks(page)) {
        // A C block without includes is only a part of a program. Therefore the test puts the block into a function.
        let is_piece = !block.text.contains("#include");
        let inside = |head: &str| match is_piece {
            true => format!(
                "#include <gpuflame.h>\n{head}void piece(void *model);\nvoid piece(void *model) {{\n{}}}\n",
                block.text
            ),
            false => block.text.clone(),
        };
        let (source, mut command) = match block.kind.as_str() {
            "sh" | "sh run" => (block.text.clone(), Command::new("bash")),
            "c" => (inside("void decode(void *);\n"), Command::new("gcc")),
            "cpp" => (inside("void decode(void *);\n"), Command::new("g++")),
            "python" => (block.text.clone(), Command::new("python3")),
            "yaml" => match python() {
                Some(python) => (block.text.clone(), Command::new(python)),
                None => continue,
            },
            // All TOML blocks in pages are settings files. `gpuflame run` checks such a file before it runs the
            // command.
            "toml" => (block.text.clone(), Command::new(installed().join("bin/gpuflame"))),
            "json" => {
                serde_json::from_str::<serde_json::Value>(&block.text).unwrap();
                continue;
            }
            "rust" | "text" | "" => continue,
            other => panic!("{}: no test knows what {other} is", block.page.display()),
        };
        let kind = block.kind.split(' ').next().unwrap();
        let file = folder.join(format!("block.{}", if kind == "python" { "py" } else { kind }));
        fs::write(&file, source).unwrap();
        match kind {
            "sh" => command.arg("-n").arg(&file),
            "c" => {
                command.args(["-std=c99", "-fsyntax-only", "-Wall", "-Werror", "-I"]).arg(&include).arg(&file)
            }
            "cpp" => command
                .args(["-std=c++11", "-fsyntax-only", "-Wall", "-Werror", "-I"])
                .arg(&include)
                .arg(&file),
            "toml" => command.args(["run", "-q", "--config"]).arg(&file).arg("true"),
            "python" => {
                command.args(["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())"]).arg(&file)
            }
            _ => command
                .args(["-c", "import sys, yaml; assert list(yaml.safe_load_all(open(sys.argv[1])))"])
                .arg(&file),
        };
        let output = command.output().unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{}\n{why}", block.page.display(), block.text);
    }
}

#[test]
fn ellipses_in_patterns_match_any_text() {
    for (line, pattern, is) in [
        ("a 1 b 2 c", "a … b … c", true),
        ("a 1 b 2 c", "a … c", true),
        ("a 1 b 2 c", "…b…", true),
        ("a 1 b 2 c", "a … d", false),
        ("a 1", "a 2", false),
        ("a 1", "a", false),
        ("a", "a", true),
    ] {
        assert_eq!(is_like(line, pattern), is, "{line} {pattern}");
    }
}
