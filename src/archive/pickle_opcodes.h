#pragma once

namespace lockstep::opcode {

// Of Python's pickle; names as there.
inline constexpr char kProto = '\x80';
inline constexpr char kStop = '.';
inline constexpr char kMark = '(';
inline constexpr char kGlobal = 'c';
inline constexpr char kReduce = 'R';
inline constexpr char kBuild = 'b';
inline constexpr char kBinPersId = 'Q';
inline constexpr char kNone = 'N';
inline constexpr char kNewTrue = '\x88';
inline constexpr char kNewFalse = '\x89';
inline constexpr char kBinInt = 'J';
inline constexpr char kBinInt1 = 'K';
inline constexpr char kBinInt2 = 'M';
inline constexpr char kLong1 = '\x8a';
inline constexpr char kBinFloat = 'G';
inline constexpr char kBinUnicode = 'X';
inline constexpr char kEmptyDict = '}';
inline constexpr char kEmptyList = ']';
inline constexpr char kEmptyTuple = ')';
inline constexpr char kTuple = 't';
inline constexpr char kTuple1 = '\x85';
inline constexpr char kTuple2 = '\x86';
inline constexpr char kTuple3 = '\x87';
inline constexpr char kAppend = 'a';
inline constexpr char kAppends = 'e';
inline constexpr char kSetItem = 's';
inline constexpr char kSetItems = 'u';
inline constexpr char kBinGet = 'h';
inline constexpr char kLongBinGet = 'j';
inline constexpr char kBinPut = 'q';
inline constexpr char kLongBinPut = 'r';

}  // namespace lockstep::opcode
