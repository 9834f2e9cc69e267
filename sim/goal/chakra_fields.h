/* chakra_fields.h: the field numbers of Chakra's messages, for reading and writing. */
#ifndef TUTTI_SIM_GOAL_CHAKRA_FIELDS_H
#define TUTTI_SIM_GOAL_CHAKRA_FIELDS_H

/* Field numbers. */
enum {
  NODE_ID = 1,
  NODE_NAME = 2,
  NODE_TYPE = 3,
  NODE_CTRL_DEPS = 4,
  NODE_DATA_DEPS = 5,
  NODE_DURATION = 7,
  NODE_ATTR = 10,
  ATTR_NAME = 1,
  ATTR_INT32 = 7,
  ATTR_INT64 = 9,
  ATTR_BOOL = 27,
  ATTR_STRING = 29
};
enum wire { WIRE_NUMBER = 0, WIRE_EIGHT = 1, WIRE_BYTES = 2, WIRE_FOUR = 5 };

#endif
