#include <gtest/gtest.h>
TEST(Mqar, placeholder) {}
