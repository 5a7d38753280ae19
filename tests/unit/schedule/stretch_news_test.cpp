#include "lib/schedule/stretch_news.h"

#include <doctest/doctest.h>

using ckpt::schedule::StretchNews;

TEST_CASE("stretch news: it is told once, and again where it has become another matter") {
  StretchNews news;
  CHECK_FALSE(news.is_news(0));
  CHECK(news.is_news(1000));
  CHECK_FALSE(news.is_news(1000));
  CHECK_FALSE(news.is_news(1900));
  CHECK(news.is_news(2500));
  CHECK_FALSE(news.is_news(1500));
  CHECK(news.is_news(1000));
}

TEST_CASE("stretch news: a stretch after a while without is told again") {
  StretchNews news;
  CHECK(news.is_news(1000));
  CHECK_FALSE(news.is_news(0));
  CHECK_FALSE(news.is_news(0));
  CHECK(news.is_news(1000));
}
