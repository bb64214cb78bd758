//! Compiles each side's scheduler twice: for BPF, with a skeleton and bindings of its interface header,
//! and natively, into shared objects that the simulator loads once per simulated kernel. The BPF object
//! says which maps there are.

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `BPF_MAP_TYPE_STRUCT_OPS`.
const STRUCT_OPS: u32 = 26;

/// Folders in `bpf/`.
const SIDES: [&str; 2] = ["guest", "host"];

fn main() {
    for dir in ["../../policy", "../../bpf", "native"] {
        println!("cargo:rerun-if-changed={dir}");
    }
    println!("cargo:rerun-if-env-changed=BPF_CLANG");
    for side in SIDES {
        if let Err(error) = build(side) {
            panic!("building the BPF part of the {side} scheduler failed: {error}");
        }
    }
    if let Err(error) = trace_layout() {
        panic!("reading the layout of traces failed: {error}");
    }
    if let Err(error) = current_task() {
        panic!("building the record of current tasks failed: {error}");
    }
    if let Err(error) = for_the_kernel("../../bpf/host/observe.h", "../../bpf/host/observe.bpf.c", "observe")
    {
        panic!("building the observer of hosts failed: {error}");
    }
}

/// Skeleton of a program without an interface of its own.
fn current_task() -> Result<(), String> {
    scx_cargo::BpfBuilder::new()
        .and_then(|mut builder| builder.enable_skel("../../bpf/kit/current.bpf.c", "current").build())
        .map_err(|error| format!("{error:?}"))
}

/// Skeleton and bindings.
fn for_the_kernel(intf: &str, main: &str, name: &str) -> Result<(), String> {
    scx_cargo::BpfBuilder::new()
        .and_then(|mut builder| {
            builder.enable_intf(intf, &format!("{name}_intf.rs")).enable_skel(main, name).build()
        })
        .map_err(|error| format!("{error:?}"))
}

/// Bindings of what traces consist of: the same on either side.
fn trace_layout() -> Result<(), String> {
    scx_cargo::BpfBuilder::new()
        .and_then(|mut builder| builder.enable_intf("../../bpf/core/trace.h", "trace_intf.rs").build())
        .map_err(|error| format!("{error:?}"))
}

fn build(side: &str) -> Result<(), String> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    let (intf, main) = (format!("../../bpf/{side}/intf.h"), format!("../../bpf/{side}/main.bpf.c"));
    for_the_kernel(&intf, &main, side)?;
    write(&out.join(format!("{side}_fingerprint.rs")), &fingerprint(&out.join(format!("{side}.bpf.o")))?)?;
    if std::env::var_os("CARGO_FEATURE_NATIVE").is_none() {
        return Ok(());
    }
    let headers = out.join("native/bpf");
    std::fs::create_dir_all(&headers).map_err(|error| error.to_string())?;
    for (name, text) in libbpf_sys::API_HEADERS {
        let text = if name == "bpf_helper_defs.h" { helpers_as_functions(text)? } else { text.to_owned() };
        write(&headers.join(name), &text)?;
    }
    let scx = out.join("scx_utils-bpf_h");
    write(&out.join("native/enums.h"), &enums(&scx.join("scx/enums.autogen.bpf.h"))?)?;
    write(&out.join(format!("native_{side}_maps.rs")), &maps(side, &out.join(format!("{side}.bpf.o")))?)?;
    native(&out, &scx, side, &format!("{side}.so"), &[])?;
    native(&out, &scx, side, &format!("{side}_explored.so"), &["-DSIM_EXPLORE"])
}

/// Eight hexadecimal digits, as Rust's expression, that are others as soon as the programs of a BPF object are others. Where a line stands in its
/// source does not matter.
fn fingerprint(object: &Path) -> Result<String, String> {
    let bytes = std::fs::read(object).map_err(|error| format!("{}: {error}", object.display()))?;
    let file = object::File::parse(&*bytes).map_err(|error| format!("{}: {error}", object.display()))?;
    // FNV-1a.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    for section in file.sections() {
        let name = section.name().map_err(|error| error.to_string())?;
        if [".BTF", ".rel", ".debug", ".symtab", ".strtab", ".llvm"]
            .iter()
            .any(|other| name.starts_with(other))
        {
            continue;
        }
        add(name.as_bytes());
        add(section.data().map_err(|error| error.to_string())?);
        // Which function is called, and which map is used, stands here only.
        for (at, relocation) in section.relocations() {
            add(&at.to_le_bytes());
            if let RelocationTarget::Symbol(index) = relocation.target() {
                let symbol = file.symbol_by_index(index).map_err(|error| error.to_string())?;
                add(symbol.name_bytes().map_err(|error| error.to_string())?);
            }
        }
    }
    Ok(format!("\"{:08x}\"\n", hash >> 32 ^ hash & 0xffff_ffff))
}

/// The maps of a policy, from the type information of the BPF object.
fn maps(side: &str, object: &Path) -> Result<String, String> {
    let open = libbpf_rs::ObjectBuilder::default().open_file(object).map_err(|error| error.to_string())?;
    let mut text = format!("const {}_MAPS: &[Map] = &[\n", side.to_uppercase());
    for map in open.maps() {
        let name = map.name().to_string_lossy();
        // Skips the variables and the struct_ops table: here these are symbols of their own.
        if name.contains(['.', '_']) && map.initial_value().is_some()
            || u32::from(map.map_type()) == STRUCT_OPS
        {
            continue;
        }
        let (kind, key, value) = (u32::from(map.map_type()), map.key_size(), map.value_size());
        let _ = writeln!(text, "    ({name:?}, {kind}, {key}, {value}, {}),", map.max_entries());
    }
    text.push_str("];\n");
    Ok(text)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// `static RET (* const NAME)(ARGS) = (void *) N;` becomes `extern RET NAME(ARGS);`.
fn helpers_as_functions(text: &str) -> Result<String, String> {
    let mut result = String::new();
    for statement in text.split_inclusive(';') {
        let Some(at) = statement.find("(* const ") else {
            result.push_str(statement);
            continue;
        };
        let (before, after) = statement.split_at(at);
        let from = before.rfind("static ").ok_or("a helper that is not static")?;
        let (name, arguments) =
            after["(* const ".len()..].split_once(')').ok_or("a helper without a name")?;
        let (arguments, _) = arguments.rsplit_once('=').ok_or("a helper without a number")?;
        let kind = before[from + "static ".len()..].trim_end();
        let _ = write!(result, "{}extern {kind} {name}{};", &before[..from], arguments.trim_end());
    }
    Ok(result)
}

/// The kernel's constants are variables that the loader sets. Here they come from the types that we compile with.
fn enums(header: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(header).map_err(|error| format!("{}: {error}", header.display()))?;
    let names = || {
        text.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(" __")).map(|(name, _)| name)
    };
    let mut result = String::new();
    for name in names() {
        let _ = writeln!(result, "#undef {name}");
    }
    result.push_str("void sim_set_enums(void)\n{\n");
    for name in names() {
        let _ = writeln!(result, "#ifdef HAVE_{name}\n\t*(volatile u64 *)&__{name} = (u64){name};\n#endif");
    }
    result.push_str("}\n");
    Ok(result)
}

fn native(out: &Path, scx: &Path, side: &str, name: &str, more: &[&str]) -> Result<(), String> {
    let clang = std::env::var("BPF_CLANG").unwrap_or_else(|_| "clang".into());
    let arch = match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        other => return Err(format!("no headers for {other:?}")),
    };
    let include = |path: PathBuf| format!("-I{}", path.display());
    let status = Command::new(&clang)
        .args(["-O2", "-fPIC", "-shared", "-nostdlib", "-fno-builtin", "-fno-stack-protector", "-w"])
        .args(["-fno-strict-aliasing", "-Wl,--hash-style=gnu", "-Wl,-z,norelro"])
        .arg(format!("-D__TARGET_ARCH_{arch}"))
        .arg(format!("-D__SCX_TARGET_ARCH_{arch}"))
        .arg(include(out.join("native")))
        .arg(include(scx.join("arch").join(arch)))
        .arg(include(scx.to_owned()))
        .arg(format!("native/{side}.c"))
        .arg("-o")
        .arg(out.join(name))
        .args(more)
        .status()
        .map_err(|error| format!("{clang}: {error}"))?;
    status.success().then_some(()).ok_or_else(|| format!("{clang}: {status}"))
}
