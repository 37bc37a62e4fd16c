// A link of a campaign in ns-3, in real time, between two TAP devices whose descriptors are handed over.
//
// Usage: scenario KIND CLIENT-FD SERVER-FD SEED UP DOWN, where UP and DOWN are
// RATE-BPS,DELAY-NS,QUEUE,LOSS. KIND is `point-to-point` (rate, delay, queue and loss are those of the
// link), `wifi` (802.11a with an access point between the two and rate control by AARF; the four come
// before the air), or `wifi-54` (the same at 54 Mbit/s from the first frame).
//
// It says `ready`, answers each line `count` with its counters as one line of JSON, and ends with the
// input. Packets pass without an IP stack: what comes from one TAP goes through the link to the other.

#include "ns3/core-module.h"
#include "ns3/energy-module.h"
#include "ns3/fd-net-device-module.h"
#include "ns3/internet-module.h"
#include "ns3/mobility-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/wifi-module.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <sched.h>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace ns3;

namespace
{

constexpr uint16_t IPV4 = 0x0800;
// As the lab gives them to the TAP devices.
const Mac48Address TAP_ADDRESSES[2] = {"02:00:00:00:00:01", "02:00:00:00:00:02"};
// Above the programs that are measured.
constexpr int PRIORITY = 10;
// How often the lag behind the clock is looked at, and how many looks are kept.
constexpr int64_t LOOK_EVERY_NS = 1'000'000;
constexpr size_t MAX_LOOKS = 4'000'000;
// A lag that is counted as late.
constexpr int64_t LATE_NS = 1'000'000;
// Longer than any experiment.
constexpr double LONGEST_S = 1e6;

struct Pipe
{
    uint64_t rateBps;
    int64_t delayNs;
    std::string queue;
    double loss;
};

struct Counts
{
    uint64_t offeredPackets = 0;
    uint64_t offeredBytes = 0;
    uint64_t deliveredPackets = 0;
    uint64_t deliveredBytes = 0;
    uint64_t lost = 0;
    uint64_t full = 0;
};

// What the stations and the access point do on the air.
struct Air
{
    uint64_t frames = 0;
    // Of the frames with data: the sum of their rates, and of their times.
    double rateSumBps = 0.0;
    double airtimeS = 0.0;
    uint64_t unacknowledged = 0;
    uint32_t longestQueue = 0;
};

Pipe
ReadPipe(const std::string& text)
{
    std::istringstream fields(text);
    std::string rate;
    std::string delay;
    std::string queue;
    std::string loss;
    std::getline(fields, rate, ',');
    std::getline(fields, delay, ',');
    std::getline(fields, queue, ',');
    std::getline(fields, loss, ',');
    return {std::stoull(rate), std::stoll(delay), queue, std::stod(loss)};
}

// What a packet meets before the air, where the air is ns-3's WiFi: as tc on the sender's egress.
class Shaper
{
  public:
    void Configure(const Pipe& pipe, int64_t stream)
    {
        m_pipe = pipe;
        m_random = CreateObject<UniformRandomVariable>();
        m_random->SetStream(stream);
    }

    // Whether the packet is lost here.
    bool Loses()
    {
        return m_pipe.loss > 0 && m_random->GetValue() < m_pipe.loss;
    }

    // After which time the packet leaves.
    Time Delay(uint32_t bytes)
    {
        Time now = Simulator::Now();
        Time start = std::max(now, m_free);
        if (m_pipe.rateBps > 0)
        {
            m_free = start + Seconds(bytes * 8.0 / m_pipe.rateBps);
            start = m_free;
        }
        return start - now + NanoSeconds(m_pipe.delayNs);
    }

  private:
    Pipe m_pipe{0, 0, "", 0.0};
    Ptr<UniformRandomVariable> m_random;
    Time m_free;
};

Ptr<FdNetDevice> g_tap[2];
Ptr<NetDevice> g_link[2];
Address g_destination[2];
Counts g_counts[2];
Shaper g_shaper[2];
Time g_extraDelay[2];
bool g_isWifi = false;
Ptr<WifiRadioEnergyModel> g_radio;
Air g_air;
std::vector<Ptr<WifiMacQueue>> g_queues;
uint64_t g_lateLooks = 0;
std::vector<uint32_t> g_lagUs;
std::chrono::steady_clock::time_point g_start;

// Hands a packet to the link's device on this side.
void
Send(int side, Ptr<Packet> packet)
{
    if (!g_link[side]->Send(packet, g_destination[side], IPV4))
    {
        g_counts[side].full++;
    }
}

// A packet from the TAP of a side.
bool
FromTap(int side, Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t protocol, const Address&)
{
    if (protocol != IPV4)
    {
        return true;
    }
    g_counts[side].offeredPackets++;
    g_counts[side].offeredBytes += packet->GetSize();
    if (!g_isWifi)
    {
        Send(side, packet->Copy());
    }
    else if (g_shaper[side].Loses())
    {
        g_counts[side].lost++;
    }
    else
    {
        Simulator::Schedule(g_shaper[side].Delay(packet->GetSize()), &Send, side, packet->Copy());
    }
    return true;
}

// To the TAP of the side where a packet has arrived.
void
Deliver(int side, Ptr<Packet> packet)
{
    int from = 1 - side;
    g_counts[from].deliveredPackets++;
    g_counts[from].deliveredBytes += packet->GetSize();
    g_tap[side]->Send(packet, TAP_ADDRESSES[side], IPV4);
}

// A packet from the link's device on this side.
bool
FromLink(int side, Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t protocol, const Address&)
{
    if (protocol == IPV4)
    {
        Simulator::Schedule(g_extraDelay[1 - side], &Deliver, side, packet->Copy());
    }
    return true;
}

void
Lost(int from, Ptr<const Packet>)
{
    g_counts[from].lost++;
}

void
PointToPoint(NodeContainer nodes, const Pipe pipes[2])
{
    auto channel = CreateObject<PointToPointChannel>();
    // The channel has one delay; what one direction has beyond it comes at its end.
    int64_t common = std::min(pipes[0].delayNs, pipes[1].delayNs);
    channel->SetAttribute("Delay", TimeValue(NanoSeconds(common)));
    Ptr<PointToPointNetDevice> devices[2];
    for (int side = 0; side < 2; side++)
    {
        const Pipe& out = pipes[side];
        auto device = CreateObject<PointToPointNetDevice>();
        devices[side] = device;
        device->SetAddress(Mac48Address::Allocate());
        uint64_t rate = out.rateBps > 0 ? out.rateBps : 10'000'000'000ULL;
        device->SetDataRate(DataRate(rate));
        auto queue = CreateObject<DropTailQueue<Packet>>();
        queue->SetMaxSize(QueueSize(out.queue));
        device->SetQueue(queue);
        nodes.Get(side)->AddDevice(device);
        device->Attach(channel);
        g_extraDelay[side] = NanoSeconds(out.delayNs - common);
        g_link[side] = device;
        g_destination[side] = device->GetBroadcast();
    }
    for (int side = 0; side < 2; side++)
    {
        // What is lost on its way from here is lost where it arrives.
        auto errors = CreateObject<RateErrorModel>();
        errors->SetUnit(RateErrorModel::ERROR_UNIT_PACKET);
        errors->SetRate(pipes[side].loss);
        errors->AssignStreams(100 + side);
        devices[1 - side]->SetReceiveErrorModel(errors);
        devices[1 - side]->TraceConnectWithoutContext("PhyRxDrop", MakeBoundCallback(&Lost, side));
    }
}

// A frame goes on the air.
void
Transmit(Ptr<const Packet> packet, uint16_t, WifiTxVector vector, MpduInfo, uint16_t)
{
    WifiMacHeader header;
    packet->PeekHeader(header);
    if (!header.IsData())
    {
        return;
    }
    g_air.frames++;
    g_air.rateSumBps += static_cast<double>(vector.GetMode().GetDataRate(vector));
    g_air.airtimeS +=
        WifiPhy::CalculateTxDuration(packet->GetSize(), vector, WIFI_PHY_BAND_5GHZ).GetSeconds();
}

void
Unacknowledged(Mac48Address)
{
    g_air.unacknowledged++;
}

// Watches what a device has on the air and before it.
void
Watch(Ptr<NetDevice> device)
{
    auto wifi = DynamicCast<WifiNetDevice>(device);
    wifi->GetPhy()->TraceConnectWithoutContext("MonitorSnifferTx", MakeCallback(&Transmit));
    auto manager = wifi->GetRemoteStationManager();
    manager->TraceConnectWithoutContext("MacTxDataFailed", MakeCallback(&Unacknowledged));
    g_queues.push_back(wifi->GetMac()->GetTxopQueue(AC_BE_NQOS));
}

void
Wifi(NodeContainer stations, const Pipe pipes[2], bool hasRateControl)
{
    g_isWifi = true;
    NodeContainer accessPoint(1);
    auto channel = YansWifiChannelHelper::Default();
    YansWifiPhyHelper phy;
    phy.SetChannel(channel.Create());
    phy.Set("ChannelSettings", StringValue("{36, 20, BAND_5GHZ, 0}"));
    WifiHelper wifi;
    wifi.SetStandard(WIFI_STANDARD_80211a);
    if (hasRateControl)
    {
        wifi.SetRemoteStationManager("ns3::AarfWifiManager");
    }
    else
    {
        wifi.SetRemoteStationManager("ns3::ConstantRateWifiManager",
                                     "DataMode",
                                     StringValue("OfdmRate54Mbps"));
    }
    WifiMacHelper mac;
    Ssid ssid("lab");
    mac.SetType("ns3::StaWifiMac", "Ssid", SsidValue(ssid), "ActiveProbing", BooleanValue(false));
    auto stationDevices = wifi.Install(phy, mac, stations);
    mac.SetType("ns3::ApWifiMac", "Ssid", SsidValue(ssid));
    auto accessPointDevice = wifi.Install(phy, mac, accessPoint);
    wifi.AssignStreams(stationDevices, 200);
    wifi.AssignStreams(accessPointDevice, 300);

    MobilityHelper mobility;
    auto places = CreateObject<ListPositionAllocator>();
    places->Add(Vector(5.0, 0.0, 0.0));
    places->Add(Vector(0.0, 5.0, 0.0));
    places->Add(Vector(0.0, 0.0, 0.0));
    mobility.SetPositionAllocator(places);
    mobility.SetMobilityModel("ns3::ConstantPositionMobilityModel");
    mobility.Install(stations);
    mobility.Install(accessPoint);

    BasicEnergySourceHelper source;
    source.Set("BasicEnergySourceInitialEnergyJ", DoubleValue(1e9));
    source.Set("BasicEnergySupplyVoltageV", DoubleValue(3.0));
    auto sources = source.Install(stations.Get(0));
    WifiRadioEnergyModelHelper radio;
    auto models = radio.Install(stationDevices.Get(0), sources.Get(0));
    g_radio = DynamicCast<WifiRadioEnergyModel>(models.Get(0));

    for (int side = 0; side < 2; side++)
    {
        g_link[side] = stationDevices.Get(side);
        g_destination[side] = stationDevices.Get(1 - side)->GetAddress();
        g_shaper[side].Configure(pipes[side], 400 + side);
        Watch(stationDevices.Get(side));
    }
    Watch(accessPointDevice.Get(0));
}

double
Percentile(double part)
{
    if (g_lagUs.empty())
    {
        return 0.0;
    }
    auto index = static_cast<size_t>(part * (g_lagUs.size() - 1));
    std::nth_element(g_lagUs.begin(), g_lagUs.begin() + index, g_lagUs.end());
    return g_lagUs[index];
}

void
Print()
{
    std::ostringstream line;
    line.precision(12);
    const char* names[2] = {"up", "down"};
    line << "{";
    for (int side = 0; side < 2; side++)
    {
        const Counts& counts = g_counts[side];
        line << "\"" << names[side] << "\":{\"offered_packets\":" << counts.offeredPackets
             << ",\"offered_bytes\":" << counts.offeredBytes
             << ",\"delivered_packets\":" << counts.deliveredPackets
             << ",\"delivered_bytes\":" << counts.deliveredBytes << ",\"lost\":" << counts.lost
             << ",\"full\":" << counts.full << "},";
    }
    line << "\"lag_p99_us\":" << Percentile(0.99) << ",\"lag_p999_us\":" << Percentile(0.999)
         << ",\"lag_max_us\":" << Percentile(1.0) << ",\"looks\":" << g_lagUs.size()
         << ",\"late_looks\":" << g_lateLooks << ",\"energy_j\":";
    if (g_radio)
    {
        line << g_radio->GetTotalEnergyConsumption() << ",\"air\":{\"frames\":" << g_air.frames
             << ",\"rate_sum_bps\":" << g_air.rateSumBps << ",\"airtime_s\":" << g_air.airtimeS
             << ",\"unacknowledged\":" << g_air.unacknowledged
             << ",\"longest_queue\":" << g_air.longestQueue << "}";
    }
    else
    {
        line << "null,\"air\":null";
    }
    line << "}";
    std::cout << line.str() << std::endl;
}

// How far the simulation is behind the clock.
void
Look()
{
    auto passed = std::chrono::steady_clock::now() - g_start;
    auto passedNs = std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count();
    int64_t lagNs = passedNs - Simulator::Now().GetNanoSeconds();
    if (g_lagUs.size() < MAX_LOOKS)
    {
        g_lagUs.push_back(static_cast<uint32_t>(std::max<int64_t>(lagNs, 0) / 1000));
        g_lateLooks += lagNs > LATE_NS ? 1 : 0;
    }
    for (const auto& queue : g_queues)
    {
        g_air.longestQueue = std::max(g_air.longestQueue, queue->GetNPackets());
    }
    Simulator::Schedule(NanoSeconds(LOOK_EVERY_NS), &Look);
}

void
Ready()
{
    if (g_isWifi)
    {
        for (const auto& device : g_link)
        {
            auto mac = DynamicCast<StaWifiMac>(DynamicCast<WifiNetDevice>(device)->GetMac());
            if (!mac->IsAssociated())
            {
                Simulator::Schedule(MilliSeconds(10), &Ready);
                return;
            }
        }
    }
    // The first moments, in which everything is set up, are not of the measurement.
    g_lagUs.clear();
    g_lateLooks = 0;
    g_air = Air();
    std::cout << "ready" << std::endl;
}

void
Begin()
{
    g_start = std::chrono::steady_clock::now();
    g_start -= std::chrono::nanoseconds(Simulator::Now().GetNanoSeconds());
    Look();
    Ready();
}

// The lab's orders, on a thread of their own.
void
Listen()
{
    std::string line;
    while (std::getline(std::cin, line))
    {
        Simulator::ScheduleWithContext(0, Seconds(0), &Print);
    }
    // Destructors of the devices' threads and of the WiFi models don't get along; nothing is left
    // to be written.
    _exit(0);
}

} // namespace

int
main(int argc, char** argv)
{
    if (argc != 7)
    {
        std::cerr << "seven words, not " << argc << std::endl;
        return 1;
    }
    std::string kind = argv[1];
    int descriptors[2] = {std::stoi(argv[2]), std::stoi(argv[3])};
    RngSeedManager::SetSeed(1);
    RngSeedManager::SetRun(std::stoull(argv[4]));
    Pipe pipes[2] = {ReadPipe(argv[5]), ReadPipe(argv[6])};

    sched_param priority{};
    priority.sched_priority = PRIORITY;
    // Without the right to it the lag tells.
    sched_setscheduler(0, SCHED_FIFO, &priority);
    GlobalValue::Bind("SimulatorImplementationType", StringValue("ns3::RealtimeSimulatorImpl"));

    NodeContainer nodes(2);
    if (kind == "wifi" || kind == "wifi-54")
    {
        Wifi(nodes, pipes, kind == "wifi");
    }
    else
    {
        PointToPoint(nodes, pipes);
    }
    for (int side = 0; side < 2; side++)
    {
        auto tap = CreateObject<FdNetDevice>();
        tap->SetEncapsulationMode(FdNetDevice::DIX);
        tap->SetAddress(TAP_ADDRESSES[side]);
        tap->SetFileDescriptor(descriptors[side]);
        nodes.Get(side)->AddDevice(tap);
        g_tap[side] = tap;
        // After the node's own: packets go to the link, not to an IP stack.
        tap->SetReceiveCallback(MakeBoundCallback(&FromTap, side));
        g_link[side]->SetReceiveCallback(MakeBoundCallback(&FromLink, side));
    }
    Simulator::ScheduleWithContext(0, MilliSeconds(100), &Begin);
    std::thread(Listen).detach();
    Simulator::Stop(Seconds(LONGEST_S));
    Simulator::Run();
    _exit(0);
}
