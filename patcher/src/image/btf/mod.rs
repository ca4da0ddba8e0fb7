//! BTF, the kernel's own type information: how big a type is, where a field lies in a structure, what a function takes
//! and returns.
//!
//! The format is that of `Documentation/bpf/btf.rst`. Types refer to each other by number and may do so in circles or
//! nest without end in a damaged table, so every walk is bounded.

#[cfg(test)]
mod tests;
mod view;

pub use view::{Function, Kind, Member, Param, Type};

/// Types at most (a distribution's kernel has about 150,000).
pub const MAX_TYPES: usize = 1 << 20;
/// Longest name looked at, in bytes.
const MAX_NAME_BYTES: usize = 512;
/// Typedefs, qualifiers, array dimensions and nested structures in a row at most.
const MAX_DEPTH: usize = 32;
/// Members looked at for one field at most.
const MAX_MEMBERS: usize = 1 << 16;
const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
/// The fields of the header that every version has.
const HEADER_BYTES: usize = 24;
const POINTER_BYTES: u64 = 8;

/// Why type information can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// Not BTF, or of another version or byte order.
    #[error("not BTF of version 1 (it begins with {found:02x?})")]
    NotBtf {
        /// The first bytes, at most 4.
        found: Vec<u8>,
    },
    /// The tables are not where the header says.
    #[error("the BTF's {what} lie outside its {len} bytes: it is truncated or damaged")]
    Outside {
        /// "types" or "strings".
        what: &'static str,
        /// Its size, in bytes.
        len: usize,
    },
    /// A type of a kind that is not known, so that what follows can't be found.
    #[error("BTF type {id} is of kind {kind}, which is not known: the kernel is newer than this program")]
    UnknownKind {
        /// Its number.
        id: u32,
        /// Its kind.
        kind: u8,
    },
    /// A type is cut off.
    #[error("BTF type {id} runs past the end of the types: it is truncated or damaged")]
    Cut {
        /// Its number.
        id: u32,
    },
    /// More types than any kernel has.
    #[error("the BTF has more than {MAX_TYPES} types: no real kernel does, so it is refused")]
    TooMany,
}

/// The number of a type; 0 is `void`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub u32);

/// A field of a structure, found by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Distance from the beginning of the structure, in bits.
    pub bit_offset: u64,
    /// Size in bits, if it is a bit field.
    pub bits: Option<u8>,
    /// Its type.
    pub ty: TypeId,
}

impl Field {
    /// Distance from the beginning of the structure, in bytes; `None` for a bit field that doesn't begin with a byte.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.bit_offset.is_multiple_of(8).then_some(self.bit_offset / 8)
    }
}

/// Type information.
#[derive(Clone, Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where type 1, 2 … begin.
    offsets: Vec<u32>,
}

impl<'a> Btf<'a> {
    /// Reads the header and finds every type.
    ///
    /// # Errors
    /// Another format, a truncated table, types of unknown kinds.
    pub fn parse(bytes: &'a [u8]) -> Result<Btf<'a>, BtfError> {
        let not_btf = || BtfError::NotBtf { found: bytes[..bytes.len().min(4)].to_vec() };
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or_else(not_btf)?;
        let word = |at: usize| {
            let field = header[at..].first_chunk().copied().unwrap_or_default();
            u32::from_le_bytes(field) as usize
        };
        if u16::from_le_bytes([header[0], header[1]]) != MAGIC || header[2] != VERSION {
            return Err(not_btf());
        }
        let table = |what, offset: usize, len: usize| {
            let from = word(4).checked_add(offset);
            let range = from.and_then(|from| Some(from..from.checked_add(len)?));
            range.and_then(|r| bytes.get(r)).ok_or(BtfError::Outside { what, len: bytes.len() })
        };
        let types = table("types", word(8), word(12))?;
        let strings = table("strings", word(16), word(20))?;
        Ok(Btf { types, strings, offsets: offsets(types)? })
    }

    /// How many types there are, `void` not counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// One type; `None` for `void` and numbers that don't exist.
    #[must_use]
    pub fn get(&self, id: TypeId) -> Option<Type<'a>> {
        let at = *self.offsets.get((id.0 as usize).checked_sub(1)?)?;
        Type::read(self.types.get(at as usize..)?, self.strings)
    }

    /// All types.
    pub fn iter(&self) -> impl Iterator<Item = (TypeId, Type<'a>)> + '_ {
        (1..=self.offsets.len() as u32).map(TypeId).filter_map(|id| Some((id, self.get(id)?)))
    }

    /// The first type of a kind and name. Looks at all types: about a millisecond.
    #[must_use]
    pub fn named(&self, kind: Kind, name: &str) -> Option<TypeId> {
        self.iter().find(|(_, t)| t.kind == kind && t.name() == name).map(|(id, _)| id)
    }

    /// A type without typedefs and qualifiers; `None` for `void` or if it never ends.
    #[must_use]
    pub fn resolve(&self, id: TypeId) -> Option<(TypeId, Type<'a>)> {
        let mut id = id;
        for _ in 0..MAX_DEPTH {
            let ty = self.get(id)?;
            match ty.kind {
                Kind::Typedef | Kind::Volatile | Kind::Const | Kind::Restrict | Kind::TypeTag => id = ty.refers_to(),
                _ => return Some((id, ty)),
            }
        }
        None
    }

    /// Size of a type in bytes; `None` for types without one.
    #[must_use]
    pub fn size_of(&self, id: TypeId) -> Option<u64> {
        let (mut id, mut count) = (id, 1u64);
        for _ in 0..MAX_DEPTH {
            let (_, ty) = self.resolve(id)?;
            let each = match ty.kind {
                Kind::Int | Kind::Struct | Kind::Union | Kind::Enum | Kind::Enum64 | Kind::Float => ty.size(),
                Kind::Pointer => POINTER_BYTES,
                Kind::Array => {
                    let (element, n) = ty.array()?;
                    count = count.checked_mul(n.into())?;
                    id = element;
                    continue;
                }
                _ => return None,
            };
            return count.checked_mul(each);
        }
        None
    }

    /// A field of a structure or union, by a path like `mm.owner.pid`: through fields of structure type (not through
    /// pointers), anonymous structures and unions looked into.
    #[must_use]
    pub fn field(&self, structure: TypeId, path: &str) -> Option<Field> {
        let mut found = Field { bit_offset: 0, bits: None, ty: structure };
        let mut left = MAX_MEMBERS;
        for name in path.split('.') {
            let inner = self.member(found.ty, name, MAX_DEPTH, &mut left)?;
            found = Field { bit_offset: found.bit_offset.checked_add(inner.bit_offset)?, ..inner };
        }
        Some(found)
    }

    fn member(&self, of: TypeId, name: &str, depth: usize, left: &mut usize) -> Option<Field> {
        let (_, ty) = self.resolve(of)?;
        for m in ty.members() {
            *left = left.checked_sub(1)?;
            if m.name() == name && !name.is_empty() {
                return Some(Field { bit_offset: m.bit_offset.into(), bits: m.bits, ty: m.ty });
            }
            if m.name().is_empty()
                && depth > 0
                && let Some(f) = self.member(m.ty, name, depth - 1, left)
            {
                return Some(Field { bit_offset: f.bit_offset + u64::from(m.bit_offset), ..f });
            }
        }
        None
    }

    /// What a function takes and returns, given its own type (of [`Kind::Func`]) or its prototype's.
    #[must_use]
    pub fn function(&self, id: TypeId) -> Option<Function<'a>> {
        let ty = self.get(id)?;
        let proto = if ty.kind == Kind::Func { self.get(ty.refers_to())? } else { ty };
        proto.function()
    }

    /// A type as C writes it, roughly: `const struct file *`, `char[16]`.
    #[must_use]
    pub fn spell(&self, id: TypeId) -> String {
        let mut id = id;
        let mut before = String::new();
        let mut after = String::new();
        for _ in 0..MAX_DEPTH {
            let Some(ty) = self.get(id) else {
                let void = if id.0 == 0 { "void" } else { "?" };
                return format!("{before}{void}{after}");
            };
            match ty.kind {
                Kind::Pointer => after.insert_str(0, if after.starts_with('*') { "*" } else { " *" }),
                Kind::Const => before.push_str("const "),
                Kind::Volatile => before.push_str("volatile "),
                Kind::Restrict | Kind::TypeTag => {}
                Kind::Array => after.push_str(&format!("[{}]", ty.array().map_or(0, |(_, n)| n))),
                Kind::FuncProto => return format!("{before}function{after}"),
                _ => return format!("{before}{}{}{after}", ty.kind.keyword(), ty.name_or_anonymous()),
            }
            id = match ty.array() {
                Some((element, _)) => element,
                None => ty.refers_to(),
            };
        }
        "?".into()
    }
}

/// Where each type begins.
fn offsets(types: &[u8]) -> Result<Vec<u32>, BtfError> {
    let mut offsets = Vec::with_capacity((types.len() / 24).min(MAX_TYPES));
    let mut at = 0;
    while at < types.len() {
        if offsets.len() == MAX_TYPES {
            return Err(BtfError::TooMany);
        }
        let id = offsets.len() as u32 + 1;
        let len = view::type_len(&types[at..]).map_err(|kind| match kind {
            Some(kind) => BtfError::UnknownKind { id, kind },
            None => BtfError::Cut { id },
        })?;
        offsets.push(at as u32);
        at += len;
    }
    Ok(offsets)
}

/// The string at an offset; a `?` if it is not one, or not printable.
fn name_at(strings: &[u8], at: u32) -> &str {
    let rest = strings.get(at as usize..).unwrap_or_default();
    let rest = &rest[..rest.len().min(MAX_NAME_BYTES)];
    let name = rest.iter().position(|&b| b == 0).map(|end| &rest[..end]);
    let printable = name.filter(|n| n.iter().all(|b| b.is_ascii_graphic() || *b == b' '));
    printable.and_then(|n| std::str::from_utf8(n).ok()).unwrap_or("?")
}
