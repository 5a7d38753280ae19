// The members of sockets in the manifest (lib/store/manifest_fields.h).
#pragma once

#include <array>

#include "lib/store/socket_image.h"

namespace ckpt::store {

inline constexpr std::array<const char*, 7> kSocketStateNames = {"unconnected", "listening", "connected", "pending",
                                                                 "peer-gone",   "external",  "closed"};
/// sizeof(struct sockaddr_storage); sockaddr_un of a name in a folder of its own is the longest that occurs.
inline constexpr size_t kMaxSocketName = 128;
inline constexpr size_t kMaxSocketOption = 4096;
inline constexpr size_t kMaxSocketFilter = 8 * 4096;  ///< BPF_MAXINSNS instructions

template <class A>
void describe(A& a, typename A::template Of<SocketOption> o) {
  a.text("name", o.name);
  a.octets("value", o.value, 0, kMaxSocketOption);
}

template <class A>
void describe(A& a, typename A::template Of<SocketCredentials> c) {
  a.number("pid", c.pid, 0);
  a.number("uid", c.uid);
  a.number("gid", c.gid);
  a.numbers("groups", c.groups);
}

template <class A>
void describe(A& a, typename A::template Of<SocketMessage> m) {
  a.number("size", m.size);
  a.octets("from", m.from, 0, kMaxSocketName);
  a.octets("to", m.to, 0, kMaxSocketName);
  a.flag("has_credentials", m.has_credentials);
  a.number("sender_pid", m.sender_pid, 0);
  a.number("sender_uid", m.sender_uid);
  a.number("sender_gid", m.sender_gid);
  a.numbers("rights", m.rights);
  a.flag("out_of_band", m.out_of_band);
}

template <class A>
void describe(A& a, typename A::template Of<SocketFile> f) {
  a.text("path", f.path);
  a.flag("deleted", f.deleted);
  a.number("mode", f.mode);
  a.number("uid", f.uid);
  a.number("gid", f.gid);
}

template <class A>
void describe(A& a, typename A::template Of<SocketMembership> m) {
  a.number("interface", m.interface);
  a.octets("group", m.group, 0, kMaxSocketName);
}

template <class A>
void describe(A& a, typename A::template Of<TcpConnection> t) {
  a.number("state", t.state, 0, 12);
  a.number("send_sequence", t.send_sequence);
  a.number("receive_sequence", t.receive_sequence);
  a.number("receive_size", t.receive_size);
  a.number("send_size", t.send_size);
  a.number("unsent_size", t.unsent_size);
  a.number("mss", t.mss);
  a.flag("has_window_scale", t.has_window_scale);
  a.flag("sack", t.sack);
  a.flag("timestamps", t.timestamps);
  a.number("send_scale", t.send_scale, 0, 14);
  a.number("receive_scale", t.receive_scale, 0, 14);
  a.number("timestamp", t.timestamp);
  a.flag("has_window", t.has_window);
  a.number("window_sequence", t.window_sequence);
  a.number("send_window", t.send_window);
  a.number("max_window", t.max_window);
  a.number("receive_window", t.receive_window);
  a.number("receive_window_update", t.receive_window_update);
  a.optional().number("receive_memory", t.receive_memory);
}

template <class A>
void describe(A& a, typename A::template Of<Socket> s) {
  a.number("descriptor", s.descriptor, -1);
  a.number("inode", s.inode);
  a.number("family", s.family, 0);
  a.number("type", s.type, 0);
  a.number("protocol", s.protocol, 0);
  a.choice("state", s.state, kSocketStateNames);
  a.octets("name", s.name, 0, kMaxSocketName);
  a.octets("peer_name", s.peer_name, 0, kMaxSocketName);
  a.optional().flag("foreign_address", s.foreign_address);
  a.number("peer", s.peer, -1);
  a.flag("reset", s.reset);
  a.number("shutdown", s.shutdown, 0, 3);
  a.number("backlog", s.backlog);
  a.numbers("pending", s.pending);
  a.number("mode", s.mode);
  a.number("uid", s.uid);
  a.number("gid", s.gid);
  a.object("file", s.file);
  a.object("peer_credentials", s.peer_credentials);
  a.object("connector", s.connector);
  a.list("options", s.options);
  a.octets("filter", s.filter, 0, kMaxSocketFilter);
  a.numbers("groups", s.groups);
  a.list("memberships", s.memberships);
  a.list("messages", s.messages);
  a.object("tcp", s.tcp);
  a.number("content_offset", s.content_offset);
  a.number("content_size", s.content_size);
}

}  // namespace ckpt::store
