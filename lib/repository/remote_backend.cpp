// Objects elsewhere: lib/remote.
#include <algorithm>
#include <map>
#include <mutex>

#include "lib/remote/backend.h"
#include "lib/remote/cached_object.h"
#include "lib/repository/backend.h"

namespace ckpt::repository {

namespace {

constexpr size_t kMostObjects = 2'000'000;

class RemoteBackend final : public Backend {
 public:
  RemoteBackend(std::string place, const Cancel* cancel) : place_(std::move(place)), cancel_(cancel) {}

  Result<void> open() {
    CKPT_TRY_ASSIGN(const remote::Url url, remote::parse_url(place_));
    if (!url.query.empty())
      return fail(Code::kUnsupported, place_, "is a URL with a query: what lies below it has other URLs");
    CKPT_TRY_ASSIGN(reader_, remote::open_backend(url, cancel_));
    if (url.scheme == remote::Url::Scheme::kHttp) return {};
    CKPT_TRY_ASSIGN(writer_, remote::open_writable(url, cancel_));
    return {};
  }

  Result<void> put(const std::string& name, ByteSpan bytes, bool only_if_absent) override {
    if (writer_ == nullptr)
      return Error(Code::kUnsupported, place_, "is read only: HTTP has no way to write that servers agree on")
          .with_hint("s3:// and gs:// are written to");
    CKPT_TRY(check(name));
    return writer_->put(name, bytes, only_if_absent);
  }

  Result<std::vector<StoredObject>> list(const std::string& folder) override {
    std::vector<StoredObject> out;
    CKPT_TRY_ASSIGN(const remote::Url url, remote::parse_url(folder.empty() ? place_ : place_ + "/" + folder + "/"));
    CKPT_TRY_ASSIGN(std::unique_ptr<remote::Backend> backend, remote::open_backend(url, cancel_));
    auto objects = backend->list(kMostObjects);
    if (!objects && objects.error().code == Code::kNotFound) return out;
    if (!objects) return std::move(objects).error();
    for (remote::Object& object : *objects) {
      if (is_object_name(object.name)) out.push_back({std::move(object.name), object.size});
    }
    return out;
  }

  Result<StoredObject> look_up(const std::string& name) override {
    CKPT_TRY(check(name));
    CKPT_TRY_ASSIGN(const remote::Url url, remote::parse_url(place_ + "/" + name));
    CKPT_TRY_ASSIGN(std::unique_ptr<remote::Backend> backend, remote::open_backend(url, cancel_));
    auto found = backend->list(1);
    const bool folder = found ? !found->front().name.empty() : found.error().code == Code::kUsage;
    if (folder) return fail(Code::kNotFound, subject(name), "is not there: others lie below it");
    if (!found) return std::move(found).error();
    return StoredObject{name.substr(name.find('/') + 1), found->front().size};
  }

  Result<void> read(const std::string& name, uint64_t size, uint64_t offset, MutableByteSpan out) override {
    CKPT_TRY(check(name));
    if (offset > size || out.size() > size - offset) return fail(Code::kCorrupt, subject(name), "truncated");
    remote::Object object;
    object.name = name, object.size = size;
    return reader_->read(object, offset, out);
  }

  Result<void> remove(const std::string& name) override {
    if (writer_ == nullptr) return fail(Code::kUnsupported, place_, "is read only");
    CKPT_TRY(check(name));
    return writer_->remove(name);
  }

  std::string subject(const std::string& name) const override { return name.empty() ? place_ : place_ + "/" + name; }
  size_t good_read() const override { return 1000 << 10; }
  unsigned settles_s() const override { return 2; }  // a request that was sent, or a program on its way to its end
  std::optional<std::string> strangers() const override {
    return place_ + " is a URL, and who may write there ckpt cannot see";
  }

 private:
  Result<void> check(const std::string& name) const {
    const size_t slash = name.find('/');
    const bool good = slash == std::string::npos
                          ? is_object_name(name)
                          : is_object_name(name.substr(0, slash)) && is_object_name(name.substr(slash + 1));
    return good ? Result<void>() : fail(Code::kUsage, subject(name), "is no name of an object");
  }

  const std::string place_;
  const Cancel* cancel_;
  std::unique_ptr<remote::Backend> reader_;
  std::unique_ptr<remote::WritableBackend> writer_;  ///< null: read only
};

}  // namespace

Result<std::unique_ptr<Backend>> open_remote(const std::string& place, const Cancel* cancel) {
  std::string plain = place;
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  auto out = std::make_unique<RemoteBackend>(plain, cancel);
  CKPT_TRY(out->open());
  return std::unique_ptr<Backend>(std::move(out));
}

}  // namespace ckpt::repository
