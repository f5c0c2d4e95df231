//! Requests: a header, then the body that belongs to the header's op.
//!
//! Bytes after a body are ignored.

use bytes::Bytes;

use super::codes::{CreateFlags, OpCode};
use super::jute::{Credential, Jute, Sink, Unreadable, records};

records! {
    /// Before each request.
    RequestHeader {
        /// Any number; the reply has the same.
        xid: i32,
        /// An [`OpCode`], unless it is unknown.
        op: i32,
    }

    /// An entry of an ACL.
    Acl {
        perms: i32,
        scheme: Option<String>,
        id: Option<String>,
    }

    Create {
        path: Option<String>,
        data: Option<Bytes>,
        acl: Option<Vec<Acl>>,
        flags: i32,
    }

    CreateTtl {
        create: Create,
        /// In milliseconds.
        ttl: i64,
    }

    Delete {
        path: Option<String>,
        version: i32,
    }

    SetData {
        path: Option<String>,
        data: Option<Bytes>,
        version: i32,
    }

    SetAcl {
        path: Option<String>,
        acl: Option<Vec<Acl>>,
        version: i32,
    }

    Check {
        path: Option<String>,
        version: i32,
    }

    /// A body with only a path.
    PathOnly {
        path: Option<String>,
    }

    /// A read that can set a watch.
    Read {
        path: Option<String>,
        watch: bool,
    }

    /// The watches of a client that has reconnected. A list must not be null, a path may be.
    SetWatches {
        /// The zxid that the client has seen.
        relative_zxid: i64,
        data: Vec<Option<String>>,
        exist: Vec<Option<String>>,
        child: Vec<Option<String>>,
    }

    SetWatches2 {
        one_shot: SetWatches,
        persistent: Vec<Option<String>>,
        persistent_recursive: Vec<Option<String>>,
    }

    AddWatch {
        path: Option<String>,
        /// An `AddWatchMode`.
        mode: i32,
    }

    /// The watches of a client on a path.
    WatchesOf {
        path: Option<String>,
        /// A `WatcherType`.
        kind: i32,
    }

    Auth {
        /// Ignored.
        kind: i32,
        scheme: Option<String>,
        auth: Credential,
    }

    Sasl {
        token: Credential,
    }

    Reconfig {
        joining: Option<String>,
        leaving: Option<String>,
        members: Option<String>,
        config_id: i64,
    }

    /// Before each operation of a multi, each result, and at the end.
    MultiHeader {
        kind: i32,
        done: bool,
        err: i32,
    }
}

impl MultiHeader {
    /// Ends a multi and its reply.
    pub(crate) const END: MultiHeader = MultiHeader { kind: -1, done: true, err: -1 };
}

/// Declares an enum of bodies by their ops, or of replies by the ops of their requests.
macro_rules! by_op {
    (
        $(#[$meta:meta])*
        $name:ident { $($(#[$of:meta])* $op:ident($body:ty),)* } bare { $($(#[$bare_of:meta])* $bare:ident,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum $name {
            $($(#[$of])* $op($body),)*
            $($(#[$bare_of])* $bare,)*
        }

        impl $name {
            /// The op that it belongs to.
            pub(crate) fn op(&self) -> OpCode {
                match self {
                    $($name::$op(_) => OpCode::$op,)*
                    $($name::$bare => OpCode::$bare,)*
                }
            }

            /// Reads the body of an op; there is none for ops that are not listed.
            #[allow(unreachable_patterns, reason = "where all ops are listed")]
            pub(super) fn read(op: OpCode, from: &mut Bytes) -> Result<Self, Unreadable> {
                match op {
                    $(OpCode::$op => Jute::read(from).map($name::$op),)*
                    $(OpCode::$bare => Ok($name::$bare),)*
                    _ => Err(Unreadable),
                }
            }

            pub(super) fn write(&self, to: &mut dyn Sink) {
                match self {
                    $($name::$op(body) => body.write(to),)*
                    $($name::$bare => {})*
                }
            }
        }
    };
}
pub(super) use by_op;

by_op! {
    /// A request of a client.
    Request {
        Create(Create),
        Create2(Create),
        CreateContainer(Create),
        CreateTtl(CreateTtl),
        Delete(Delete),
        /// For servers only.
        DeleteContainer(PathOnly),
        Exists(Read),
        GetData(Read),
        GetChildren(Read),
        GetChildren2(Read),
        SetData(SetData),
        GetAcl(PathOnly),
        SetAcl(SetAcl),
        /// Has no meaning outside of a multi.
        Check(Check),
        Sync(PathOnly),
        Multi(MultiRequest),
        MultiRead(MultiRequest),
        Auth(Auth),
        Sasl(Sasl),
        SetWatches(SetWatches),
        SetWatches2(SetWatches2),
        AddWatch(AddWatch),
        CheckWatches(WatchesOf),
        RemoveWatches(WatchesOf),
        GetEphemerals(PathOnly),
        GetAllChildrenNumber(PathOnly),
        Reconfig(Reconfig),
    } bare {
        Ping,
        WhoAmI,
        /// For servers only.
        CreateSession,
        CloseSession,
    }
}

by_op! {
    /// One operation of a multi.
    MultiOp {
        Create(Create),
        Create2(Create),
        CreateContainer(Create),
        CreateTtl(CreateTtl),
        Delete(Delete),
        SetData(SetData),
        Check(Check),
        /// The watch flag is ignored here.
        GetChildren(Read),
        GetData(Read),
    } bare {}
}

impl MultiOp {
    /// Whether it is for a multiRead.
    fn is_read(&self) -> bool {
        matches!(self, MultiOp::GetChildren(_) | MultiOp::GetData(_))
    }

    /// The type of the operation's result if it succeeds. For a create the flags decide, and the op only if
    /// they leave it open.
    pub(crate) fn result(&self) -> OpCode {
        match self {
            MultiOp::Create(body) if body.flags == i32::from(CreateFlags::Container) => {
                OpCode::Create2
            }
            MultiOp::CreateContainer(_) => OpCode::Create2,
            MultiOp::CreateTtl(body) => match CreateFlags::try_from(body.create.flags) {
                Ok(flags) if flags == CreateFlags::Container || flags.has_ttl() => OpCode::Create2,
                _ => OpCode::Create,
            },
            other => other.op(),
        }
    }

    /// Whether a server reads on after this operation. It stops reading at a create with unknown flags,
    /// with flags for a time to live (which the operation does not have), or with a null ACL.
    fn is_readable(&self) -> bool {
        match self {
            MultiOp::Create(body) | MultiOp::Create2(body) | MultiOp::CreateContainer(body) => {
                let flags = CreateFlags::try_from(body.flags);
                body.acl.is_some() && flags.is_ok_and(|flags| !flags.has_ttl())
            }
            _ => true,
        }
    }
}

/// The operations of a multi or a multiRead.
///
/// A list with both reads and writes is unreadable. A list of only one kind is readable, in either
/// request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MultiRequest {
    pub(crate) ops: Vec<MultiOp>,
}

impl Jute for MultiRequest {
    const LEAST: usize = MultiHeader::LEAST;

    fn read(from: &mut Bytes) -> Result<Self, Unreadable> {
        let mut ops: Vec<MultiOp> = Vec::new();
        loop {
            let header = MultiHeader::read(from)?;
            if header.done {
                return Ok(MultiRequest { ops });
            }
            let op = OpCode::try_from(header.kind).map_err(|_| Unreadable)?;
            let op = MultiOp::read(op, from)?;
            let is_mixed = ops.first().is_some_and(|first| first.is_read() != op.is_read());
            if is_mixed || !op.is_readable() {
                return Err(Unreadable);
            }
            ops.push(op);
        }
    }

    fn write(&self, to: &mut dyn Sink) {
        for op in &self.ops {
            MultiHeader { kind: op.op().into(), done: false, err: -1 }.write(to);
            op.write(to);
        }
        MultiHeader::END.write(to);
    }
}

/// The decoded bytes after a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// A complete body.
    Request(Request),
    /// A body that cannot be read. The reply is MarshallingError, and the connection stays open; only for
    /// auth and sasl it is closed without a reply.
    Unreadable(OpCode),
    /// An op that no server knows. The reply is Unimplemented, and the connection is closed.
    UnknownOp,
}

/// Decodes a frame. If the header is incomplete, no reply is possible, and the connection is
/// closed.
pub(crate) fn decode(mut frame: Bytes) -> Result<(RequestHeader, Decoded), Unreadable> {
    let header = RequestHeader::read(&mut frame)?;
    let decoded = match OpCode::try_from(header.op) {
        Err(_) => Decoded::UnknownOp,
        Ok(op) => match Request::read(op, &mut frame) {
            Ok(request) => Decoded::Request(request),
            Err(Unreadable) => Decoded::Unreadable(op),
        },
    };
    Ok((header, decoded))
}

impl Request {
    /// Appends the body of a frame.
    pub(crate) fn encode(&self, xid: i32, to: &mut dyn Sink) {
        RequestHeader { xid, op: self.op().into() }.write(to);
        self.write(to);
    }
}
