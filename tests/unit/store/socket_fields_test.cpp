#include "lib/state/sockets/record.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

using namespace ckpt::store;

namespace {

/// An archive that only notes the names: every member of the records is named, and no name twice.
class Names {
 public:
  template <class T>
  using Of = const T&;

  template <class T>
  void number(const char* name, const T&, int64_t = 0, int64_t = 0) {
    add(name);
  }
  Names& optional() { return *this; }
  void flag(const char* name, bool) { add(name); }
  void text(const char* name, const std::string&) { add(name); }
  void octets(const char* name, const std::vector<uint8_t>&, size_t, size_t) { add(name); }
  template <class C>
  void numbers(const char* name, const C&) {
    add(name);
  }
  template <class E, size_t N>
  void choice(const char* name, E value, const std::array<const char*, N>& names) {
    CHECK(static_cast<size_t>(value) < names.size());
    add(name);
  }
  template <class T>
  void object(const char* name, const T& value) {
    add(name);
    nest(value);
  }
  template <class T>
  void list(const char* name, const std::vector<T>& values) {
    add(name);
    for (const T& value : values) nest(value);
  }
  std::set<std::string> names;

 private:
  void add(const char* name) { CHECK_MESSAGE(names.insert(prefix_ + name).second, name); }
  template <class T>
  void nest(const T& value) {
    std::string before = prefix_;
    prefix_ += std::to_string(names.size()) + ".";
    describe<Names>(*this, value);
    prefix_ = before;
  }
  std::string prefix_;
};

}  // namespace

TEST_CASE("socket fields: every record can be described, each member under a name of its own") {
  Socket socket;
  socket.state = SocketState::kClosed;
  socket.options.resize(1), socket.messages.resize(1);
  Names archive;
  describe<Names>(archive, socket);
  CHECK(archive.names.size() > 50);
  CHECK(archive.names.count("peer_credentials") == 1);
}
