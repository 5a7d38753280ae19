// The mounts of a tree's own mount namespace: what the manifest says of them.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/state/mappings/record.h"

namespace ckpt::store {

/// An extended attribute of a file.
struct FileAttribute {
  std::string name;
  std::vector<uint8_t> value;
  bool operator==(const FileAttribute&) const = default;
};

/// A file, folder, link, device, fifo or socket of a file system in memory.
struct MemoryFile {
  std::string path;  ///< below the root of the file system; empty: that root
  uint32_t mode = 0, uid = 0, gid = 0;
  uint64_t inode = 0, device = 0;  ///< `device`: that it stands for
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  std::string target;  ///< of a symbolic link
  int link_of = -1;    ///< another name of that file, which comes before it
  std::vector<FileAttribute> attributes;
  int space = -1;  ///< memory space of its bytes, where it has_bytes
  bool has_bytes() const { return S_ISREG(mode) && link_of < 0 && size != 0; }
  bool operator==(const MemoryFile&) const = default;
};

/// What is mounted, at one place or at several.
struct MountedFilesystem {
  uint64_t device = 0;
  std::string type, source, options;  ///< as in mountinfo: `options` of the superblock
  std::vector<MemoryFile> files;      ///< of a file system in memory that the host does not have: each after its folder
  int pid_namespace = -1;  ///< of a "proc" of a further pid namespace: its index in Namespaces::further; -1: of none
  bool operator==(const MountedFilesystem&) const = default;
};

struct Mount {
  int parent = -1;      ///< index of the mount that it lies on, which comes before it; -1: it is the root
  int filesystem = 0;   ///< index
  std::string root;     ///< which folder or file of the file system it shows
  std::string point;    ///< where
  std::string options;  ///< as in mountinfo: "ro,nosuid,relatime"
  bool shared = false, slave = false;
  std::string external;            ///< whoever restores it gives it, by this key; empty: none
  std::string host;                ///< where ckpt itself saw the same; empty: nowhere
  uint64_t device = 0, inode = 0;  ///< of what it shows
  std::string problem;             ///< why it cannot be made from this image; empty: it can
  bool operator==(const Mount&) const = default;
};

struct Mounts {
  std::vector<MountedFilesystem> filesystems;
  std::vector<Mount> mounts;  ///< those that can be seen; the first is the root
  bool operator==(const Mounts&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<FileAttribute> f) {
  constexpr size_t kMostBytes = 1 << 16;
  a.text("name", f.name);
  a.octets("value", f.value, 0, kMostBytes);
}

template <class A>
void describe(A& a, typename A::template Of<MemoryFile> f) {
  a.text("path", f.path);
  a.number("mode", f.mode);
  a.number("uid", f.uid);
  a.number("gid", f.gid);
  a.number("inode", f.inode);
  a.number("device", f.device);
  a.number("size", f.size);
  a.number("mtime_ns", f.mtime_ns);
  a.text("target", f.target);
  a.number("link_of", f.link_of, -1);
  a.list("attributes", f.attributes);
  a.number("space", f.space, -1, kMaxSpaces - 1);
}

template <class A>
void describe(A& a, typename A::template Of<MountedFilesystem> f) {
  a.number("device", f.device);
  a.text("type", f.type);
  a.text("source", f.source);
  a.text("options", f.options);
  a.list("files", f.files);
  a.optional().number("pid_namespace", f.pid_namespace, -1);
}

template <class A>
void describe(A& a, typename A::template Of<Mount> m) {
  a.number("parent", m.parent, -1);
  a.number("filesystem", m.filesystem, 0);
  a.text("root", m.root);
  a.text("point", m.point);
  a.text("options", m.options);
  a.flag("shared", m.shared);
  a.flag("slave", m.slave);
  a.text("external", m.external);
  a.text("host", m.host);
  a.number("device", m.device);
  a.number("inode", m.inode);
  a.text("problem", m.problem);
}

template <class A>
void describe(A& a, typename A::template Of<Mounts> m) {
  a.list("filesystems", m.filesystems);
  a.list("mounts", m.mounts);
}

}  // namespace ckpt::store
