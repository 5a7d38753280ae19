// The least archive that `describe` can run on: a flat list of named values, written and read back. It shows that a
// record names each member once and loses none.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace ckpt::store::testing {

using Values = std::map<std::string, std::string>;

class RecordOut {
 public:
  template <class T>
  using Of = const T&;
  RecordOut(Values& values, std::string place) : values_(values), place_(std::move(place)) {}
  RecordOut& optional() { return *this; }

  template <class I>
  void number(const char* name, I value, int64_t low = std::numeric_limits<int64_t>::min(),
              int64_t high = std::numeric_limits<int64_t>::max()) {
    if constexpr (std::is_signed_v<I>) out_of_range |= value < low || value > high;
    put(name, std::to_string(value));
  }
  void hex(const char* name, uint64_t value) { put(name, std::to_string(value)); }
  void flag(const char* name, bool value) { put(name, value ? "1" : "0"); }
  void text(const char* name, const std::string& value) { put(name, value); }
  void octets(const char* name, const std::vector<uint8_t>& value, size_t least, size_t most) {
    out_of_range |= value.size() < least || value.size() > most;
    put(name, std::string(value.begin(), value.end()));
  }
  template <class C>
  void numbers(const char* name, const C& values) {
    std::string all;
    for (auto value : values) all += std::to_string(value) + " ";
    put(name, all);
  }
  void hexes(const char* name, const std::vector<uint64_t>& values) { numbers(name, values); }
  template <class E, size_t N>
  void choice(const char* name, E value, const std::array<const char*, N>& names) {
    put(name, names.at(static_cast<size_t>(value)));
  }
  template <class T>
  void list(const char* name, const std::vector<T>& values) {
    list(name, values, [](RecordOut& sub, const T& value) { describe<RecordOut>(sub, value); });
  }
  template <class T, class F>
  void list(const char* name, const std::vector<T>& values, F each) {
    put(name, std::to_string(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      RecordOut sub(values_, place_ + name + "/" + std::to_string(i) + "/");
      each(sub, values[i]);
      twice |= sub.twice;
      out_of_range |= sub.out_of_range;
    }
  }

  bool twice = false;         ///< a name was used for two members
  bool out_of_range = false;  ///< a value that the description itself does not allow

 private:
  void put(const char* name, std::string value) { twice |= !values_.emplace(place_ + name, std::move(value)).second; }
  Values& values_;
  std::string place_;
};

class RecordIn {
 public:
  template <class T>
  using Of = T&;
  RecordIn(const Values& values, std::string place) : values_(values), place_(std::move(place)) {}
  RecordIn& optional() { return *this; }

  template <class I>
  void number(const char* name, I& value, int64_t = 0, int64_t = 0) {
    if constexpr (std::is_signed_v<I>)
      value = static_cast<I>(std::stoll(get(name)));
    else
      value = static_cast<I>(std::stoull(get(name)));
  }
  void hex(const char* name, uint64_t& value) { value = std::stoull(get(name)); }
  void flag(const char* name, bool& value) { value = get(name) == "1"; }
  void text(const char* name, std::string& value) { value = get(name); }
  void octets(const char* name, std::vector<uint8_t>& value, size_t, size_t) {
    const std::string& text = get(name);
    value.assign(text.begin(), text.end());
  }
  template <class I>
  void numbers(const char* name, std::vector<I>& values) {
    const std::string& all = get(name);
    for (size_t at = 0; at < all.size(); at = all.find(' ', at) + 1) {
      if constexpr (std::is_signed_v<I>)
        values.push_back(static_cast<I>(std::stoll(all.substr(at))));
      else
        values.push_back(static_cast<I>(std::stoull(all.substr(at))));
    }
  }
  void hexes(const char* name, std::vector<uint64_t>& values) { numbers(name, values); }
  template <class E, size_t N>
  void choice(const char* name, E& value, const std::array<const char*, N>& names) {
    for (size_t i = 0; i < N; ++i) {
      if (get(name) == names[i]) value = static_cast<E>(i);
    }
  }
  template <class T>
  void list(const char* name, std::vector<T>& values) {
    list(name, values, [](RecordIn& sub, T& value) { describe<RecordIn>(sub, value); });
  }
  template <class T, class F>
  void list(const char* name, std::vector<T>& values, F each) {
    values.resize(std::stoull(get(name)));
    for (size_t i = 0; i < values.size(); ++i) {
      RecordIn sub(values_, place_ + name + "/" + std::to_string(i) + "/");
      each(sub, values[i]);
    }
  }

 private:
  const std::string& get(const char* name) const { return values_.at(place_ + name); }
  const Values& values_;
  std::string place_;
};

/// True when `record` comes back equal and its description allows it.
template <class T>
bool survives(const T& record) {
  Values values;
  RecordOut out(values, "");
  describe<RecordOut>(out, record);
  T read;
  RecordIn in(values, "");
  describe<RecordIn>(in, read);
  return !out.twice && !out.out_of_range && read == record;
}

}  // namespace ckpt::store::testing
