// Values and messages of the AMQP scenario, to and from those of rhea (../README.md has the form).
'use strict'

const crypto = require('node:crypto')

// Bodies above this are told by their length and digest.
const SHOWN_BYTES = 65536
const HEADER = ['durable', 'priority', 'ttl', 'first_acquirer', 'delivery_count']
const PROPERTIES = [
  'message_id', 'user_id', 'to', 'subject', 'reply_to', 'correlation_id', 'content_type', 'content_encoding',
  'absolute_expiry_time', 'creation_time', 'group_id', 'group_sequence', 'reply_to_group_id'
]
const CODES = {
  boolean: 0x56, ubyte: 0x50, ushort: 0x60, uint: 0x70, ulong: 0x80, byte: 0x51, short: 0x61, int: 0x71, long: 0x81,
  float: 0x72, double: 0x82, char: 0x73, timestamp: 0x83, uuid: 0x98, binary: 0xb0, string: 0xb1, symbol: 0xb3
}

module.exports = (rhea) => {
  const { types } = rhea
  const eight = (value) => {
    const made = Buffer.alloc(8)
    made.writeBigInt64BE(BigInt.asIntN(64, BigInt(value)))
    return made
  }
  // The library's numbers of 64 bits are numbers where they fit, and eight bytes where not.
  const wide = (value) => {
    const number = Number(value)
    return Number.isSafeInteger(number) ? number : eight(value)
  }

  function decode ([kind, value, more]) {
    switch (kind) {
      case 'null': return types.Null()
      case 'boolean': return types.wrap_boolean(value)
      case 'ubyte': return types.wrap_ubyte(Number(value))
      case 'ushort': return types.wrap_ushort(Number(value))
      case 'uint': return types.wrap_uint(Number(value))
      case 'ulong': return types.wrap_ulong(wide(value))
      case 'byte': return types.wrap_byte(Number(value))
      case 'short': return types.wrap_short(Number(value))
      case 'int': return types.wrap_int(Number(value))
      case 'long': return types.wrap_long(wide(value))
      case 'timestamp': return types.wrap_timestamp(wide(value))
      case 'float': return types.wrap_float(Buffer.from(value, 'hex').readFloatBE())
      case 'double': return types.wrap_double(Buffer.from(value, 'hex').readDoubleBE())
      case 'decimal32': return types.Decimal32(Buffer.from(value, 'hex'))
      case 'decimal64': return types.Decimal64(Buffer.from(value, 'hex'))
      case 'decimal128': return types.Decimal128(Buffer.from(value, 'hex'))
      case 'char': return types.wrap_char(Number(value))
      case 'uuid': return types.wrap_uuid(Buffer.from(value, 'hex'))
      case 'binary': return types.wrap_binary(Buffer.from(value, 'base64'))
      case 'string': return types.wrap_string(value)
      case 'symbol': return types.wrap_symbol(value)
      case 'list': return types.wrap_list(value.map(decode))
      case 'map': return types.wrap_map_as_map(new Map(value.map(([key, item]) => [decode(key), decode(item)])))
      case 'array': return types.wrap_array(more.map((item) => decode(item).value), CODES[value])
      case 'described': return types.wrap_described(decode(more), decode(value).value)
    }
    throw new Error(`no type ${kind}`)
  }

  function bytes (value) {
    return Buffer.isBuffer(value) ? value : Buffer.from(value || [])
  }

  function whole (value, signed) {
    if (Buffer.isBuffer(value)) return (signed ? value.readBigInt64BE() : value.readBigUInt64BE()).toString()
    return BigInt(value).toString()
  }

  function fixed (size, write, value) {
    const made = Buffer.alloc(size)
    made[write](value)
    return made.toString('hex')
  }

  // A typed value of the library's reader as the scenario has it.
  function encode (typed) {
    if (typed.descriptor) {
      const { descriptor } = typed
      const bare = Object.assign(Object.create(Object.getPrototypeOf(typed)), typed)
      delete bare.descriptor
      return ['described', encode(descriptor), encode(bare)]
    }
    return encodeAs(typed.type.name, typed.value, typed.array_constructor)
  }

  function encodeAs (name, value, constructor) {
    switch (name) {
      case 'Null': return ['null']
      case 'Boolean': return ['boolean', Boolean(value)]
      case 'True': return ['boolean', true]
      case 'False': return ['boolean', false]
      case 'Ubyte': return ['ubyte', whole(value)]
      case 'Ushort': return ['ushort', whole(value)]
      case 'Uint': case 'SmallUint': case 'Uint0': return ['uint', whole(value)]
      case 'Ulong': case 'SmallUlong': case 'Ulong0': return ['ulong', whole(value)]
      case 'Byte': return ['byte', whole(value, true)]
      case 'Short': return ['short', whole(value, true)]
      case 'Int': case 'SmallInt': return ['int', whole(value, true)]
      case 'Long': case 'SmallLong': return ['long', whole(value, true)]
      case 'Timestamp': return ['timestamp', whole(value.getTime(), true)]
      case 'Float': return ['float', fixed(4, 'writeFloatBE', value)]
      case 'Double': return ['double', fixed(8, 'writeDoubleBE', value)]
      case 'Decimal32': case 'Decimal64': case 'Decimal128': return [name.toLowerCase(), value.toString('hex')]
      case 'CharUTF32': return ['char', whole(value)]
      case 'Uuid': return ['uuid', value.toString('hex')]
      case 'Vbin8': case 'Vbin32': return ['binary', bytes(value).toString('base64')]
      case 'Str8': case 'Str32': return ['string', value]
      case 'Sym8': case 'Sym32': return ['symbol', value]
      case 'List0': return ['list', []]
      case 'List8': case 'List32': return ['list', value.map(encode)]
      case 'Map8': case 'Map32': return ['map', inPairs(value)]
      case 'Array8': case 'Array32': {
        const of = types.by_code[constructor.typecode].name
        const items = value.map(encode)
        return ['array', items.length ? items[0][0] : encodeAs(of, 0)[0], items]
      }
    }
    throw new Error(`no type ${name}`)
  }

  function inPairs (items) {
    const made = []
    for (let at = 0; at + 1 < items.length; at += 2) made.push([encode(items[at]), encode(items[at + 1])])
    return made
  }

  const object = (pairs) => Object.fromEntries(pairs.map(([key, item]) => [key[1], decode(item)]))

  function pattern (size) {
    return Buffer.alloc(size, Buffer.from(Array.from({ length: 251 }, (_, at) => at)))
  }

  // A message of the scenario as the library's.
  function toMessage (said) {
    const made = { ...said.header }
    for (const name of ['delivery_annotations', 'message_annotations', 'application_properties', 'footer']) {
      if (said[name]) made[name] = object(said[name])
    }
    for (const [name, value] of Object.entries(said.properties || {})) {
      // Identifiers keep their types; the other fields have only one.
      if (name.endsWith('_id') && name !== 'group_id' && name !== 'reply_to_group_id' && name !== 'user_id') made[name] = decode(value)
      else if (value[0] === 'binary') made[name] = Buffer.from(value[1], 'base64')
      else made[name] = value[0] === 'timestamp' ? wide(value[1]) : value[0] === 'uint' ? Number(value[1]) : value[1]
    }
    const { body } = said
    if (body.pattern !== undefined) made.body = rhea.message.data_section(pattern(body.pattern))
    else if (body.data) made.body = rhea.message.data_sections(body.data.map((one) => Buffer.from(one, 'base64')))
    else if (body.sequence) made.body = rhea.message.sequence_sections(body.sequence.map((one) => one.map(decode)))
    else made.body = decode(body.value)
    return made
  }

  // The sections of what has arrived, read by the library's reader with their types.
  function fromBytes (raw) {
    const reader = new types.Reader(raw)
    const said = {}
    const body = {}
    while (reader.remaining()) {
      const section = reader.read()
      const fields = (names) => {
        const found = {}
        section.value.forEach((item, at) => { if (encode(item)[0] !== 'null') found[names[at]] = encode(item) })
        return found
      }
      switch (Number(section.descriptor.value)) {
        case 0x70:
          said.header = Object.fromEntries(Object.entries(fields(HEADER)).map(([name, value]) => [name, value[1]]))
          break
        case 0x71: said.delivery_annotations = inPairs(section.value); break
        case 0x72: said.message_annotations = inPairs(section.value); break
        case 0x73: said.properties = fields(PROPERTIES); break
        case 0x74: said.application_properties = inPairs(section.value); break
        case 0x75: (body.data ||= []).push(bytes(section.value)); break
        case 0x76: (body.sequence ||= []).push(section.value.map(encode)); break
        case 0x77:
          delete section.descriptor
          body.value = encode(section)
          break
        case 0x78: said.footer = inPairs(section.value); break
        default: throw new Error(`section ${section.descriptor.value}`)
      }
    }
    if (body.data) {
      const all = Buffer.concat(body.data)
      if (all.length > SHOWN_BYTES) {
        body.digest = [all.length, crypto.createHash('sha256').update(all).digest('hex')]
        delete body.data
      } else body.data = body.data.map((one) => one.toString('base64'))
    }
    said.body = body
    return said
  }

  return { decode, encode, toMessage, fromBytes }
}
