// The words between tcp_store.cpp and tcp_store_server.cpp. A message is a list of strings, the first of them one of these; each request has
// one answer.
#pragma once

namespace deltron::store_protocol {

inline constexpr const char* kMagic = "deltron";
inline constexpr const char* kVersion = "1";
// Requests.
inline constexpr const char* kHello = "hello";      // magic, version, job, rank, world size
inline constexpr const char* kSet = "set";          // key, value
inline constexpr const char* kGet = "get";          // key
inline constexpr const char* kBeat = "beat";        // last word, kAllWords or ""
inline constexpr const char* kFault = "fault";      // text
inline constexpr const char* kGoodbye = "goodbye";
inline constexpr const char* kAllWords = "all";
// Answers.
inline constexpr const char* kFine = "fine";        // and what was asked for
inline constexpr const char* kAbsent = "absent";    // no such key yet
inline constexpr const char* kRefused = "refused";  // why

}  // namespace deltron::store_protocol
