#!/usr/bin/env python3
"""A Java program whose threads make garbage as fast as the collector takes it away, hand work to each other, and lock,
wait and time. Its checksums must be those of an uninterrupted run."""
import os
import subprocess

from app import Failure, expect, find, install, main

ROUNDS = 60
PROGRAM = r"""
import java.lang.management.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;

public class Load {
  static final int WORKERS = 4, ROUNDS = 60;
  static final long[] sums = new long[WORKERS];
  static final CyclicBarrier barrier = new CyclicBarrier(WORKERS + 1);
  static final Object monitor = new Object();
  static final ArrayDeque<byte[]> queue = new ArrayDeque<>();

  // A map of short-lived and long-lived objects, and a number that depends on each of them.
  static long churn(Map<Integer, List<String>> kept, int who, int round) {
    Random random = new Random(who * 1000L + round);
    long sum = 0;
    for (int i = 0; i < 6000; ++i) {
      List<String> list = new ArrayList<>();
      for (int j = 0; j < 8; ++j) list.add(Long.toHexString(random.nextLong()));
      kept.put(random.nextInt(3000), list);
      byte[] waste = new byte[random.nextInt(4000)];
      sum = sum * 31 + list.hashCode() + waste.length;
    }
    for (List<String> list : new TreeMap<>(kept).values()) sum = sum * 17 + String.join("-", list).hashCode();
    return sum;
  }

  static void work(int who) {
    Map<Integer, List<String>> kept = new HashMap<>();
    try {
      for (int round = 0; round < ROUNDS; ++round) {
        sums[who] = sums[who] * 131 + churn(kept, who, round);
        synchronized (monitor) {
          queue.add(new byte[1 + who]);
          monitor.notifyAll();
        }
        barrier.await();
      }
    } catch (Exception problem) {
      problem.printStackTrace();
      System.exit(3);
    }
  }

  public static void main(String[] arguments) throws Exception {
    AtomicLong taken = new AtomicLong(), ticks = new AtomicLong();
    Thread taker = new Thread(() -> {
      try {
        for (;;) {
          synchronized (monitor) {
            while (queue.isEmpty()) monitor.wait();
            taken.addAndGet(queue.poll().length);
          }
        }
      } catch (InterruptedException end) {
      }
    });
    taker.start();
    ScheduledExecutorService timer = Executors.newScheduledThreadPool(1);
    timer.scheduleAtFixedRate(() -> ticks.incrementAndGet(), 5, 5, TimeUnit.MILLISECONDS);
    for (int who = 0; who < WORKERS; ++who) {
      int own = who;
      new Thread(() -> work(own), "worker-" + who).start();
    }
    for (int round = 1; round <= ROUNDS; ++round) {
      barrier.await();
      if (round % 10 == 0) System.gc();
      System.out.println("round " + round);
    }
    long before = ticks.get();
    for (int i = 0; i < 400 && ticks.get() == before; ++i) Thread.sleep(5);
    if (ticks.get() == before) throw new IllegalStateException("the timer has stopped");
    for (int i = 0; i < 400 && taken.get() < ROUNDS * 10; ++i) Thread.sleep(5);
    taker.interrupt();
    taker.join();
    timer.shutdown();
    long collections = 0;
    for (GarbageCollectorMXBean bean : ManagementFactory.getGarbageCollectorMXBeans()) collections += bean.getCollectionCount();
    System.out.println("collections " + collections);
    System.out.println("answers {\"sums\": " + Arrays.toString(sums) + ", \"taken\": " + taken.get() + "}");
  }
}
"""


def test(run):
    install(java="default-jdk-headless", javac="default-jdk-headless")
    with open(os.path.join(run.folder, "Load.java"), "w", encoding="ascii") as source:
        source.write(PROGRAM)
    made = subprocess.run([find("javac"), "Load.java"], cwd=run.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    if made.returncode != 0:
        raise Failure(f"javac: {made.stderr}")

    def start(name):
        return run.start(name, [find("java"), "-XX:+UseG1GC", "-Xmx64m", "-cp", run.folder, "Load"])
    straight = start("straight")
    wanted = straight.answers()
    expect(wanted["taken"], ROUNDS * 10, "what was handed over")
    interrupted = start("interrupted")
    interrupted.wait_rounds(ROUNDS // 5)
    interrupted.checkpoint(between=lambda: interrupted.wait_rounds(ROUNDS // 6))
    expect(interrupted.rounds() < ROUNDS, True, "it was dumped in the middle of its work")
    expect(interrupted.answers(), wanted, "the checksums")
    expect(int(interrupted.said(r"^collections (\d+)$").group(1)) > ROUNDS, True, "the garbage was collected all along")


if __name__ == "__main__":
    main(test)
