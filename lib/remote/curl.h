// libcurl, loaded when the first URL is met: who names none needs none.
#pragma once

#include <curl/curl.h>

#include "lib/base/result.h"

namespace ckpt::remote {

struct Curl {
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_setopt) easy_setopt = nullptr;
  decltype(&curl_easy_perform) easy_perform = nullptr;
  decltype(&curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&curl_easy_reset) easy_reset = nullptr;
  decltype(&curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&curl_easy_strerror) easy_strerror = nullptr;
  decltype(&curl_slist_append) slist_append = nullptr;
  decltype(&curl_slist_free_all) slist_free_all = nullptr;
};

/// kUnsupported: it is not installed, or this ckpt is linked statically. It stays loaded.
Result<const Curl*> load_curl();

}  // namespace ckpt::remote
