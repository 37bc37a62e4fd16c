package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/Azure/go-amqp"
)

// Bodies above this are told by their length and digest.
const shownBytes = 65_536

// Value is a value in the scenario's form: the type's name, then what it is.
type Value = []any

func whole(value any) int64 {
	number, err := strconv.ParseInt(value.(string), 10, 64)
	if err != nil {
		panic(err)
	}
	return number
}

func unsigned(value any) uint64 {
	number, err := strconv.ParseUint(value.(string), 10, 64)
	if err != nil {
		panic(err)
	}
	return number
}

func octets(value any) []byte {
	raw, err := base64.StdEncoding.DecodeString(value.(string))
	if err != nil {
		panic(err)
	}
	return raw
}

func hexed(value any) []byte {
	raw, err := hex.DecodeString(value.(string))
	if err != nil {
		panic(err)
	}
	return raw
}

// elements are slices of the types that the library makes arrays of.
var elements = map[string]reflect.Type{
	"boolean": reflect.TypeFor[bool](), "byte": reflect.TypeFor[int8](), "ushort": reflect.TypeFor[uint16](),
	"short": reflect.TypeFor[int16](), "uint": reflect.TypeFor[uint32](), "int": reflect.TypeFor[int32](),
	"ulong": reflect.TypeFor[uint64](), "long": reflect.TypeFor[int64](), "float": reflect.TypeFor[float32](),
	"double": reflect.TypeFor[float64](), "string": reflect.TypeFor[string](), "symbol": reflect.TypeFor[amqp.Symbol](),
	"binary": reflect.TypeFor[[]byte](), "timestamp": reflect.TypeFor[time.Time](), "uuid": reflect.TypeFor[amqp.UUID](),
}

// decode makes the library's value of the scenario's.
func decode(said any) any {
	value := said.([]any)
	switch kind := value[0].(string); kind {
	case "null":
		return nil
	case "boolean":
		return value[1].(bool)
	case "ubyte":
		return uint8(unsigned(value[1]))
	case "ushort":
		return uint16(unsigned(value[1]))
	case "uint":
		return uint32(unsigned(value[1]))
	case "ulong":
		return unsigned(value[1])
	case "byte":
		return int8(whole(value[1]))
	case "short":
		return int16(whole(value[1]))
	case "int":
		return int32(whole(value[1]))
	case "long":
		return whole(value[1])
	case "float":
		return math.Float32frombits(binary.BigEndian.Uint32(hexed(value[1])))
	case "double":
		return math.Float64frombits(binary.BigEndian.Uint64(hexed(value[1])))
	case "timestamp":
		return time.UnixMilli(whole(value[1])).UTC()
	case "uuid":
		return amqp.UUID(hexed(value[1]))
	case "binary":
		return octets(value[1])
	case "string":
		return value[1].(string)
	case "symbol":
		return amqp.Symbol(value[1].(string))
	case "list":
		made := []any{}
		for _, one := range value[1].([]any) {
			made = append(made, decode(one))
		}
		return made
	case "map":
		made := map[any]any{}
		for _, pair := range value[1].([]any) {
			made[decode(pair.([]any)[0])] = decode(pair.([]any)[1])
		}
		return made
	case "array":
		of, known := elements[value[1].(string)]
		if !known {
			panic(cannot("the library makes no array of " + value[1].(string)))
		}
		items := value[2].([]any)
		made := reflect.MakeSlice(reflect.SliceOf(of), 0, len(items))
		for _, one := range items {
			made = reflect.Append(made, reflect.ValueOf(decode(one)))
		}
		return made.Interface()
	default:
		panic(cannot("the library has no type " + kind))
	}
}

// encode makes the scenario's value of the library's.
func encode(value any) Value {
	switch is := value.(type) {
	case nil, amqp.Null:
		return Value{"null"}
	case bool:
		return Value{"boolean", is}
	case uint8:
		return Value{"ubyte", fmt.Sprint(is)}
	case uint16:
		return Value{"ushort", fmt.Sprint(is)}
	case uint32:
		return Value{"uint", fmt.Sprint(is)}
	case uint64:
		return Value{"ulong", fmt.Sprint(is)}
	case int8:
		return Value{"byte", fmt.Sprint(is)}
	case int16:
		return Value{"short", fmt.Sprint(is)}
	case int32:
		return Value{"int", fmt.Sprint(is)}
	case int64:
		return Value{"long", fmt.Sprint(is)}
	case float32:
		return Value{"float", fmt.Sprintf("%08x", math.Float32bits(is))}
	case float64:
		return Value{"double", fmt.Sprintf("%016x", math.Float64bits(is))}
	case time.Time:
		return Value{"timestamp", fmt.Sprint(is.UnixMilli())}
	case amqp.UUID:
		return Value{"uuid", hex.EncodeToString(is[:])}
	case []byte:
		return Value{"binary", base64.StdEncoding.EncodeToString(is)}
	case string:
		return Value{"string", is}
	case amqp.Symbol:
		return Value{"symbol", string(is)}
	case []any:
		made := []Value{}
		for _, one := range is {
			made = append(made, encode(one))
		}
		return Value{"list", made}
	case amqp.Annotations:
		return Value{"map", annotations(is)}
	}
	of := reflect.ValueOf(value)
	switch of.Kind() {
	case reflect.Map:
		made := [][2]Value{}
		for _, key := range of.MapKeys() {
			made = append(made, [2]Value{encode(key.Interface()), encode(of.MapIndex(key).Interface())})
		}
		return Value{"map", made}
	case reflect.Slice:
		made := []Value{}
		for at := range of.Len() {
			made = append(made, encode(of.Index(at).Interface()))
		}
		for name, element := range elements {
			if element == of.Type().Elem() {
				return Value{"array", name, made}
			}
		}
	}
	panic(fmt.Errorf("the driver has no name for %T", value))
}

// annotations has the keys of a section of annotations, which the library shows as strings, as the symbols they are.
func annotations(from amqp.Annotations) [][2]Value {
	made := [][2]Value{}
	for key, value := range from {
		name := encode(key)
		if text, is := key.(string); is {
			name = Value{"symbol", text}
		}
		made = append(made, [2]Value{name, encode(value)})
	}
	return made
}

func toAnnotations(said any) amqp.Annotations {
	made := amqp.Annotations{}
	for _, pair := range said.([]any) {
		made[pair.([]any)[0].([]any)[1]] = decode(pair.([]any)[1])
	}
	return made
}

func pattern(size int) []byte {
	made := make([]byte, size)
	for at := range made {
		made[at] = byte(at % 251)
	}
	return made
}

func pointer[T any](value T) *T { return &value }

// toMessage makes the library's message of the scenario's.
func toMessage(said map[string]any) *amqp.Message {
	made := &amqp.Message{}
	if header, there := said["header"].(map[string]any); there {
		made.Header = &amqp.MessageHeader{Priority: 4}
		for name, value := range header {
			switch name {
			case "durable":
				made.Header.Durable = value.(bool)
			case "first_acquirer":
				made.Header.FirstAcquirer = value.(bool)
			case "priority":
				made.Header.Priority = uint8(unsigned(value))
			case "ttl":
				made.Header.TTL = time.Duration(unsigned(value)) * time.Millisecond
			case "delivery_count":
				made.Header.DeliveryCount = uint32(unsigned(value))
			}
		}
	}
	for name, into := range map[string]*amqp.Annotations{
		"delivery_annotations": &made.DeliveryAnnotations, "message_annotations": &made.Annotations, "footer": &made.Footer,
	} {
		if section, there := said[name]; there {
			*into = toAnnotations(section)
		}
	}
	if properties, there := said["properties"].(map[string]any); there {
		made.Properties = toProperties(properties)
	}
	if section, there := said["application_properties"]; there {
		made.ApplicationProperties = map[string]any{}
		for _, pair := range section.([]any) {
			made.ApplicationProperties[decode(pair.([]any)[0]).(string)] = decode(pair.([]any)[1])
		}
	}
	body := said["body"].(map[string]any)
	if size, there := body["pattern"]; there {
		made.Data = [][]byte{pattern(int(size.(float64)))}
	}
	if sections, there := body["data"]; there {
		for _, one := range sections.([]any) {
			made.Data = append(made.Data, octets(one))
		}
	}
	if sections, there := body["sequence"]; there {
		for _, one := range sections.([]any) {
			made.Sequence = append(made.Sequence, decode([]any{"list", one}).([]any))
		}
	}
	if value, there := body["value"]; there {
		if made.Value = decode(value); made.Value == nil {
			made.Value = amqp.Null{}
		}
	}
	return made
}

func toProperties(said map[string]any) *amqp.MessageProperties {
	made := &amqp.MessageProperties{}
	texts := map[string]**string{
		"to": &made.To, "subject": &made.Subject, "reply_to": &made.ReplyTo, "content_type": &made.ContentType,
		"content_encoding": &made.ContentEncoding, "group_id": &made.GroupID, "reply_to_group_id": &made.ReplyToGroupID,
	}
	for name, value := range said {
		is := decode(value)
		if into, text := texts[name]; text {
			*into = pointer(fmt.Sprint(is))
			continue
		}
		switch name {
		case "message_id":
			made.MessageID = is
		case "correlation_id":
			made.CorrelationID = is
		case "user_id":
			made.UserID = is.([]byte)
		case "absolute_expiry_time":
			made.AbsoluteExpiryTime = pointer(is.(time.Time))
		case "creation_time":
			made.CreationTime = pointer(is.(time.Time))
		case "group_sequence":
			made.GroupSequence = pointer(is.(uint32))
		}
	}
	return made
}

func fromProperties(from *amqp.MessageProperties) map[string]Value {
	made := map[string]Value{}
	for name, text := range map[string]*string{
		"to": from.To, "subject": from.Subject, "reply_to": from.ReplyTo, "group_id": from.GroupID,
		"reply_to_group_id": from.ReplyToGroupID,
	} {
		if text != nil {
			made[name] = Value{"string", *text}
		}
	}
	for name, text := range map[string]*string{"content_type": from.ContentType, "content_encoding": from.ContentEncoding} {
		if text != nil {
			made[name] = Value{"symbol", *text}
		}
	}
	for name, when := range map[string]*time.Time{
		"absolute_expiry_time": from.AbsoluteExpiryTime, "creation_time": from.CreationTime,
	} {
		if when != nil {
			made[name] = encode(*when)
		}
	}
	if from.MessageID != nil {
		made["message_id"] = encode(from.MessageID)
	}
	if from.CorrelationID != nil {
		made["correlation_id"] = encode(from.CorrelationID)
	}
	if from.UserID != nil {
		made["user_id"] = encode(from.UserID)
	}
	if from.GroupSequence != nil {
		made["group_sequence"] = encode(*from.GroupSequence)
	}
	return made
}

// fromMessage has what has arrived as the scenario has it.
func fromMessage(from *amqp.Message) map[string]any {
	said := map[string]any{}
	if from.Header != nil {
		said["header"] = map[string]any{
			"durable": from.Header.Durable, "priority": fmt.Sprint(from.Header.Priority),
			"first_acquirer": from.Header.FirstAcquirer, "delivery_count": fmt.Sprint(from.Header.DeliveryCount),
		}
		if from.Header.TTL != 0 {
			said["header"].(map[string]any)["ttl"] = fmt.Sprint(from.Header.TTL.Milliseconds())
		}
	}
	for name, section := range map[string]amqp.Annotations{
		"delivery_annotations": from.DeliveryAnnotations, "message_annotations": from.Annotations, "footer": from.Footer,
	} {
		if section != nil {
			said[name] = annotations(section)
		}
	}
	if from.Properties != nil {
		said["properties"] = fromProperties(from.Properties)
	}
	if from.ApplicationProperties != nil {
		said["application_properties"] = encode(from.ApplicationProperties)[1]
	}
	body := map[string]any{}
	switch {
	case len(from.Data) > 0:
		total, digest, sections := 0, sha256.New(), []string{}
		for _, one := range from.Data {
			total += len(one)
			_, _ = digest.Write(one)
			if total <= shownBytes {
				sections = append(sections, base64.StdEncoding.EncodeToString(one))
			}
		}
		if total > shownBytes {
			body["digest"] = []any{total, hex.EncodeToString(digest.Sum(nil))}
		} else {
			body["data"] = sections
		}
	case len(from.Sequence) > 0:
		sections := []any{}
		for _, one := range from.Sequence {
			sections = append(sections, encode(one)[1])
		}
		body["sequence"] = sections
	default:
		body["value"] = encode(from.Value)
	}
	said["body"] = body
	return said
}
