#include "lib/repository/backend.h"

#include <algorithm>

#include "lib/remote/url.h"

namespace ckpt::repository {

bool is_object_name(std::string_view name) {
  auto plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("-._+=,:").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= 200 && name[0] != '.' && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), plain);
}

Result<std::unique_ptr<Backend>> open_backend(const std::string& place, bool create, const Cancel* cancel) {
  return remote::is_url(place) ? open_remote(place, cancel) : open_local(place, create);
}

Result<std::string> read_object(Backend& backend, const std::string& folder, const StoredObject& object,
                                uint64_t limit) {
  const std::string name = folder.empty() ? object.name : folder + "/" + object.name;
  if (object.size > limit) return fail(Code::kCorrupt, backend.subject(name), "is larger than any that ckpt writes");
  std::string out(object.size, '\0');
  CKPT_TRY(backend.read(name, object.size, 0, std::as_writable_bytes(std::span(out))));
  return out;
}

Result<std::string> read_object(Backend& backend, const std::string& folder, const std::string& name, uint64_t limit) {
  CKPT_TRY_ASSIGN(const StoredObject there, backend.look_up(folder.empty() ? name : folder + "/" + name));
  return read_object(backend, folder, there, limit);
}

}  // namespace ckpt::repository
