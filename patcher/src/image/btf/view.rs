//! Views of single types in the table.

use super::{TypeId, name_at};

/// Name, kind and size: what every type begins with.
const HEAD_BYTES: usize = 12;
/// In the second word: how many members follow, what kind it is, and a flag.
const COUNT_MASK: u32 = 0xffff;
const KIND_SHIFT: u32 = 24;
const KIND_MASK: u32 = 0x1f;
const KIND_FLAG: u32 = 1 << 31;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $fixed:literal, $each:literal, $keyword:literal;)*) => {
        /// What a type is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// The kind of a number, and what follows the head: bytes once and bytes for each member.
            fn of(number: u8) -> Option<(Kind, usize, usize)> {
                match number {
                    $($number => Some((Kind::$name, $fixed, $each)),)*
                    _ => None,
                }
            }

            /// What C writes before its name.
            pub(super) fn keyword(self) -> &'static str {
                match self {
                    $(Kind::$name => $keyword,)*
                }
            }
        }
    };
}

kinds! {
    /// An integer.
    Int = 1, 4, 0, "";
    /// A pointer.
    Pointer = 2, 0, 0, "";
    /// An array.
    Array = 3, 12, 0, "";
    /// A structure.
    Struct = 4, 0, 12, "struct ";
    /// A union.
    Union = 5, 0, 12, "union ";
    /// An enumeration of up to 32 bits.
    Enum = 6, 0, 8, "enum ";
    /// A structure or union that is only declared.
    Forward = 7, 0, 0, "struct ";
    /// Another name of a type.
    Typedef = 8, 0, 0, "";
    /// `volatile`.
    Volatile = 9, 0, 0, "volatile ";
    /// `const`.
    Const = 10, 0, 0, "const ";
    /// `restrict`.
    Restrict = 11, 0, 0, "";
    /// A function by name; it refers to its prototype.
    Func = 12, 0, 0, "";
    /// What functions take and return.
    FuncProto = 13, 0, 8, "";
    /// A variable.
    Var = 14, 4, 0, "";
    /// The variables of a section.
    DataSec = 15, 0, 12, "";
    /// A floating-point number.
    Float = 16, 0, 0, "";
    /// A tag on a declaration.
    DeclTag = 17, 4, 0, "";
    /// A tag on a type.
    TypeTag = 18, 0, 0, "";
    /// An enumeration of 64 bits.
    Enum64 = 19, 0, 12, "enum ";
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

/// Length of the type that `bytes` begins with. Errors: the number of an unknown kind, or nothing if it is cut off.
pub(super) fn type_len(bytes: &[u8]) -> Result<usize, Option<u8>> {
    let info = word(bytes, 4).ok_or(None)?;
    let number = (info >> KIND_SHIFT & KIND_MASK) as u8;
    let (_, fixed, each) = Kind::of(number).ok_or(Some(number))?;
    let len = HEAD_BYTES + fixed + each * (info & COUNT_MASK) as usize;
    if len > bytes.len() { Err(None) } else { Ok(len) }
}

/// One type.
#[derive(Clone, Copy, Debug)]
pub struct Type<'a> {
    /// What it is.
    pub kind: Kind,
    flag: bool,
    name: u32,
    size_or_type: u32,
    /// What follows the head.
    rest: &'a [u8],
    strings: &'a [u8],
}

/// A member of a structure or union.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    name: u32,
    strings: &'a [u8],
    /// Its type.
    pub ty: TypeId,
    /// Distance from the beginning of the structure, in bits.
    pub bit_offset: u32,
    /// Size in bits, if it is a bit field.
    pub bits: Option<u8>,
}

/// A parameter of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param<'a> {
    /// Its name; empty if the prototype has none.
    pub name: &'a str,
    /// Its type.
    pub ty: TypeId,
}

/// What a function takes and returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// What it returns.
    pub returns: TypeId,
    /// What it takes, in order.
    pub params: Vec<Param<'a>>,
    /// Whether more arguments may follow (`...`).
    pub variadic: bool,
}

impl<'a> Member<'a> {
    /// Its name; empty for anonymous structures and unions.
    #[must_use]
    pub fn name(&self) -> &'a str {
        name_at(self.strings, self.name)
    }
}

impl<'a> Type<'a> {
    pub(super) fn read(bytes: &'a [u8], strings: &'a [u8]) -> Option<Type<'a>> {
        let len = type_len(bytes).ok()?;
        let (name, info, size_or_type) = (word(bytes, 0)?, word(bytes, 4)?, word(bytes, 8)?);
        let (kind, _, _) = Kind::of((info >> KIND_SHIFT & KIND_MASK) as u8)?;
        let rest = bytes.get(HEAD_BYTES..len)?;
        Some(Type { kind, flag: info & KIND_FLAG != 0, name, size_or_type, rest, strings })
    }

    /// Its name, without `struct` and the like; empty for anonymous ones.
    #[must_use]
    pub fn name(&self) -> &'a str {
        name_at(self.strings, self.name)
    }

    pub(super) fn name_or_anonymous(&self) -> &'a str {
        match self.name() {
            "" => "(anonymous)",
            name => name,
        }
    }

    /// Size in bytes, as integers, structures and enumerations have one.
    pub(super) fn size(&self) -> u64 {
        self.size_or_type.into()
    }

    /// The type that a pointer, typedef, qualifier, function or variable refers to.
    #[must_use]
    pub fn refers_to(&self) -> TypeId {
        match self.kind {
            Kind::Pointer | Kind::Typedef | Kind::Volatile | Kind::Const | Kind::Restrict | Kind::TypeTag => {}
            Kind::Func | Kind::FuncProto | Kind::Var | Kind::DeclTag => {}
            _ => return TypeId(0),
        }
        TypeId(self.size_or_type)
    }

    /// Type and number of an array's elements.
    #[must_use]
    pub fn array(&self) -> Option<(TypeId, u32)> {
        (self.kind == Kind::Array).then_some(())?;
        Some((TypeId(word(self.rest, 0)?), word(self.rest, 8)?))
    }

    /// The members of a structure or union; none for other types.
    pub fn members(&self) -> impl Iterator<Item = Member<'a>> + use<'a> {
        let (flag, strings) = (self.flag, self.strings);
        let rest = if matches!(self.kind, Kind::Struct | Kind::Union) { self.rest } else { &[] };
        rest.as_chunks::<12>().0.iter().filter_map(move |m| {
            let place = word(m, 8)?;
            // With the flag the top byte is the size of a bit field, or 0 for other fields.
            let (bits, bit_offset) = if flag { ((place >> 24) as u8, place & 0xff_ffff) } else { (0, place) };
            let (name, ty) = (word(m, 0)?, TypeId(word(m, 4)?));
            Some(Member { name, strings, ty, bit_offset, bits: (bits > 0).then_some(bits) })
        })
    }

    pub(super) fn function(&self) -> Option<Function<'a>> {
        (self.kind == Kind::FuncProto).then_some(())?;
        let all = self.rest.as_chunks::<8>().0.iter();
        let params = all.filter_map(|p| Some((word(p, 0)?, word(p, 4)?)));
        let mut params: Vec<Param<'a>> =
            params.map(|(name, ty)| Param { name: name_at(self.strings, name), ty: TypeId(ty) }).collect();
        // A last parameter without name and type stands for `...`.
        let variadic = params.last().is_some_and(|p| p.name.is_empty() && p.ty == TypeId(0));
        if variadic {
            params.pop();
        }
        Some(Function { returns: TypeId(self.size_or_type), params, variadic })
    }
}
