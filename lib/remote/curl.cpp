#include "lib/remote/curl.h"

#include <dlfcn.h>

#include "lib/base/core_filter.h"
#include "lib/base/linkage.h"

namespace ckpt::remote {

namespace {

template <class F>
bool find(void* library, const char* name, F& out) {
  out = reinterpret_cast<F>(::dlsym(library, name));
  return out != nullptr;
}

Result<const Curl*> load() {
  keep_memory_out_of_cores();  // passwords and tokens come with URLs
  constexpr const char* kName = "libcurl.so.4";
  CKPT_TRY(check_loads_libraries(kName));
  void* library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Error(Code::kUnsupported, kName, "cannot be loaded, and so no URL be read")
        .with_hint("the Debian package is libcurl4");
  static Curl curl;
  decltype(&curl_global_init) global_init = nullptr;
  const bool complete =
      find(library, "curl_global_init", global_init) && find(library, "curl_easy_init", curl.easy_init) &&
      find(library, "curl_easy_setopt", curl.easy_setopt) && find(library, "curl_easy_perform", curl.easy_perform) &&
      find(library, "curl_easy_getinfo", curl.easy_getinfo) && find(library, "curl_easy_reset", curl.easy_reset) &&
      find(library, "curl_easy_cleanup", curl.easy_cleanup) &&
      find(library, "curl_easy_strerror", curl.easy_strerror) &&
      find(library, "curl_slist_append", curl.slist_append) &&
      find(library, "curl_slist_free_all", curl.slist_free_all);
  if (!complete || global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    return fail(Code::kUnsupported, kName, "cannot be used");
  return &curl;
}

}  // namespace

Result<const Curl*> load_curl() {
  static const Result<const Curl*> loaded = load();
  return loaded;
}

}  // namespace ckpt::remote
