//! Loads a policy's shared object into memory of its own, so that every simulated kernel has its own variables. It
//! is loaded only if all symbols that it imports are supplied. (The C library's loader would need a dynamic
//! executable, and would have one instance per file.)

use object::read::elf::{
    ElfFile64, FileHeader as _, ProgramHeader as _, Rela as _, SectionHeader as _, Sym as _,
};
use object::{elf, Endianness, Object as _, ObjectSymbol as _};
use std::collections::HashMap;
use std::ptr;

const PAGE: usize = 4096;

/// A policy in memory.
pub(super) struct Image {
    base: *mut u8,
    length: usize,
    symbols: HashMap<String, usize>,
}

/// A segment of the file that is mapped (`PT_LOAD`).
struct Part {
    offset: usize,
    address: usize,
    in_file: usize,
    in_memory: usize,
    executable: bool,
}

impl Image {
    /// Loads `file`. `supplied` resolves the symbols that it imports.
    ///
    /// # Errors
    /// A symbol is missing, or the file is wrong.
    pub(super) fn load(file: &[u8], supplied: &dyn Fn(&str) -> Option<usize>) -> Result<Self, String> {
        let elf = ElfFile64::<Endianness>::parse(file).map_err(|error| error.to_string())?;
        if elf.elf_header().e_machine(elf.endian()) != elf::EM_X86_64 {
            return Err("policies run natively on x86_64 only".into());
        }
        let parts = parts(&elf);
        let length =
            parts.iter().map(|part| part.address + part.in_memory).max().unwrap_or(0).next_multiple_of(PAGE);
        // SAFETY: an anonymous mapping of a length that is not 0; the result is checked.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length.max(PAGE),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(format!("no memory for a policy: {}", std::io::Error::last_os_error()));
        }
        let mut image = Self { base: base.cast(), length: length.max(PAGE), symbols: HashMap::new() };
        for part in &parts {
            let bytes =
                file.get(part.offset..part.offset + part.in_file).ok_or("a part lies outside of the file")?;
            // SAFETY: the mapping covers address + in_memory of every part, and in_file is not more than that.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), image.base.add(part.address), part.in_file) };
        }
        for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
            if let (Ok(name), false) = (symbol.name(), symbol.is_undefined()) {
                if (symbol.address() as usize) < image.length {
                    image.symbols.insert(name.to_owned(), symbol.address() as usize);
                }
            }
        }
        image.relocate(&elf, supplied)?;
        for part in parts.iter().filter(|part| part.executable) {
            let from = part.address / PAGE * PAGE;
            let to = (part.address + part.in_memory).next_multiple_of(PAGE);
            // SAFETY: whole pages within the mapping.
            let failed = unsafe {
                libc::mprotect(image.base.add(from).cast(), to - from, libc::PROT_READ | libc::PROT_EXEC)
            } != 0;
            if failed {
                return Err(format!("code cannot be made executable: {}", std::io::Error::last_os_error()));
            }
        }
        Ok(image)
    }

    fn relocate(
        &mut self,
        elf: &ElfFile64<'_, Endianness>,
        supplied: &dyn Fn(&str) -> Option<usize>,
    ) -> Result<(), String> {
        let endian = elf.endian();
        let sections = elf.elf_section_table();
        let mut missing = Vec::new();
        for section in sections.iter() {
            let Ok(Some((relocations, link))) = section.rela(endian, elf.data()) else {
                continue;
            };
            // Only relocations for the dynamic linker, which are loaded (`SHF_ALLOC`).
            if section.sh_flags(endian) & u64::from(elf::SHF_ALLOC) == 0 {
                continue;
            }
            let symbols = sections
                .symbol_table_by_index(endian, elf.data(), link)
                .map_err(|error| error.to_string())?;
            for relocation in relocations {
                let at = relocation.r_offset(endian) as usize;
                let addend = relocation.r_addend(endian) as usize;
                let kind = relocation.r_type(endian, false);
                let mut target = 0;
                if let Some(index) = relocation.symbol(endian, false) {
                    let symbol = symbols.symbol(index).map_err(|error| error.to_string())?;
                    let name = symbols.symbol_name(endian, symbol).map_err(|error| error.to_string())?;
                    let name = String::from_utf8_lossy(name);
                    target = if symbol.st_shndx(endian) != elf::SHN_UNDEF {
                        self.base as usize + symbol.st_value(endian) as usize
                    } else if let Some(found) = supplied(&name) {
                        found
                    } else if symbol.st_bind() == elf::STB_WEAK {
                        0
                    } else {
                        missing.push(name.into_owned());
                        0
                    };
                }
                let value = match kind {
                    elf::R_X86_64_RELATIVE => self.base as usize + addend,
                    elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT => target,
                    // A missing weak symbol stays null, whatever the addend is.
                    elf::R_X86_64_64 if target == 0 => 0,
                    elf::R_X86_64_64 => target.wrapping_add(addend),
                    other => return Err(format!("relocation of unknown type {other}")),
                };
                if at + 8 > self.length {
                    return Err("a relocation lies outside of memory".into());
                }
                // SAFETY: within the mapping, which is writable until all relocations are done.
                unsafe { self.base.add(at).cast::<usize>().write_unaligned(value) };
            }
        }
        if missing.is_empty() {
            Ok(())
        } else {
            missing.sort();
            missing.dedup();
            Err(format!(
                "the policy asks the kernel for what the simulator does not have: {}",
                missing.join(", ")
            ))
        }
    }

    /// Address of a symbol.
    pub(super) fn address(&self, name: &str) -> Option<*mut u8> {
        let offset = *self.symbols.get(name)?;
        // SAFETY: offsets of symbols lie within the mapping.
        Some(unsafe { self.base.add(offset) })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the mapping that load() made; nobody calls into it any more.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}

fn parts(elf: &ElfFile64<'_, Endianness>) -> Vec<Part> {
    let endian = elf.endian();
    elf.elf_program_headers()
        .iter()
        .filter(|header| header.p_type(endian) == elf::PT_LOAD)
        .map(|header| Part {
            offset: header.p_offset(endian) as usize,
            address: header.p_vaddr(endian) as usize,
            in_file: (header.p_filesz(endian) as usize).min(header.p_memsz(endian) as usize),
            in_memory: header.p_memsz(endian) as usize,
            executable: header.p_flags(endian) & elf::PF_X != 0,
        })
        .collect()
}
